"""The thread of the switch ``watch_ranks``.

Each rank's state is one key of the process group's store: which process it is, and by
process group how many collectives it has begun. What has happened is found out where
the rank waits that nothing has happened to.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from contextlib import suppress
from typing import Any

from pai_torchacc.distributed import flight, processes

log = logging.getLogger("pai_torchacc")

BEAT_S = 0.25

FAILED = "failed"
"""With what the last words of a rank begin that an error has ended."""

_OF_OTHERS = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
"""What is in an error of a collective that another rank has ended."""

_LAST_LOOK_S = 0.5
"""How long a rank that fails by others waits to hear of what happened to them."""

State = dict[str, Any]
"""``pid``, ``home``, ``beat``; ``begun`` by process group; why it ``left``, or None."""


class Watcher(threading.Thread):
    """Tells where this rank is, and looks after the others."""

    def __init__(self, store: Any, rank: int, size: int, after: float) -> None:
        super().__init__(name="pai_torchacc watch_ranks", daemon=True)
        self._store, self._rank, self._size = store, rank, size
        self.after = after
        self._pid = os.getpid()
        self._own: State = {
            "pid": self._pid,
            "home": processes.home(),
            "beat": 0,
            "begun": {},
            "left": None,
        }
        self._over = threading.Event()
        self._peers: dict[int, State] = {}
        self._near: dict[int, int] = {}  # rank by process, on this machine
        self._gone: dict[int, str] = {}
        self._caused = False
        self._stopped: dict[int, int] = {}  # by rank, beats for which it was so
        self._since: dict[str, tuple[int, float]] = {}
        self._before: dict[int, int] = {}  # beats of the others in mid-wait
        self._said: set[tuple[str, int]] = set()

    def is_of_this_process(self) -> bool:
        """False in a child that a fork has made."""
        return self._pid == os.getpid()

    def run(self) -> None:
        """Watch until this rank leaves, or its store goes."""
        try:
            with processes.Ends() as ends:
                while not self._over.is_set():
                    self._tell()
                    self._meet(ends)
                    is_met = self.n_met == self._size - 1
                    for pid in ends.wait(BEAT_S if is_met else BEAT_S / 10):
                        self._say_ended(pid)
                    self._look()
        except (RuntimeError, OSError) as error:  # the store's server has ended
            log.debug("ranks are no longer watched: %s", error)

    @property
    def n_met(self) -> int:
        """How many other ranks have told where they are."""
        return len(self._peers)

    def leave(self, why: str) -> None:
        """The last that the others hear of this rank."""
        self._over.set()
        self._own["begun"] = {g: place.begun for g, place in flight.places().items()}
        state = json.dumps(self._own | {"left": why})
        with suppress(RuntimeError, OSError):  # nobody is there to hear it
            self._store.set(self._key(self._rank), state)

    @staticmethod
    def _key(rank: int) -> str:
        return f"rank{rank}"

    def _tell(self) -> None:
        self._own["beat"] += 1
        self._own["begun"] = {g: place.begun for g, place in flight.places().items()}
        if not self._over.is_set():
            self._store.set(self._key(self._rank), json.dumps(self._own))

    def _read(self, ranks: list[int]) -> None:
        keys = [self._key(rank) for rank in ranks]
        for rank, text in zip(ranks, self._store.multi_get(keys), strict=True):
            self._peers[rank] = json.loads(text)

    def _meet(self, ends: processes.Ends) -> None:
        """Take up ranks that have begun to tell."""
        others = set(range(self._size)) - {self._rank} - self._peers.keys()
        new = [r for r in sorted(others) if self._store.check([self._key(r)])]
        if not new:
            return
        self._read(new)
        for rank in new:
            peer = self._peers[rank]
            if peer["home"] == self._own["home"] and peer["left"] is None:
                self._near[peer["pid"]] = rank
                if not ends.add(peer["pid"]):
                    self._say_ended(peer["pid"])

    def _is_speaker(self) -> bool:
        """Of the ranks of a machine the first that is well speaks."""
        well = set(self._near.values()) - self._gone.keys() - self._stopped.keys()
        return self._rank < min(well, default=self._size)

    def _say_ended(self, pid: int) -> None:
        how, rank = processes.how_it_ended(pid), self._near.pop(pid)
        self._read([rank])
        self._gone[rank] = how
        if not self._peers[rank]["left"]:
            self._say_cause(rank, f"(process {pid}) {how}")

    def look_for_the_cause(self, error: BaseException) -> None:
        """Before this rank ends by an error of a collective: say whose fault it is.

        The thread of the watcher says it where a process was killed; those that end by
        themselves have told.
        """
        if not any(text in str(error) for text in _OF_OTHERS):
            return
        until = time.monotonic() + _LAST_LOOK_S
        while not self._caused and time.monotonic() < until:
            try:
                self._read(list(self._peers))
            except (RuntimeError, OSError):
                return
            for rank, peer in sorted(self._peers.items()):
                left = str(peer["left"] or "")
                if left and not any(text in left for text in _OF_OTHERS):
                    self._say_cause(rank, left)
                    return
            self._over.wait(BEAT_S / 10)

    def _say_cause(self, rank: int, how: str) -> None:
        """Name a rank whose end others may fail by; each rank tries, one speaks."""
        self._caused = True
        begun = max(self._peers[rank]["begun"].values(), default=0)
        if self._is_speaker():
            text = f"rank {rank} {how}, after {begun} collectives{self._where()}"
            self._say(text)

    def _where(self) -> str:
        for group, place in flight.places().items():
            if place.is_waiting:
                what = f"collective {place.begun}"
                if flight.is_quick():
                    what = flight.name(group, place.begun)
                return f"; rank {self._rank} waits in {what}"
        return ""

    def _say(self, text: str) -> None:
        log.error("pai_torchacc: %s", text)

    def _look(self) -> None:
        """Find out about long waits, and in short ones about ranks that are stopped."""
        now = time.monotonic()
        waits = {g: p for g, p in flight.places().items() if p.is_waiting}
        for group in self._since.keys() - waits.keys():
            del self._since[group]
        for group, place in waits.items():
            number, since = self._since.get(group, (-1, now))
            if number != place.begun:
                self._since[group] = place.begun, now
                self._before = {}
                continue
            self._look_for_stopped(group, place.begun)
            key = group, place.begun
            if key in self._said:
                continue
            if not self._before and now - since >= self.after / 2:
                self._read(list(self._peers))
                self._before = {r: p["beat"] for r, p in self._peers.items()}
            elif self._before and now - since >= self.after:
                self._said.add(key)
                self._explain(group, place.begun, now - since)

    def _look_for_stopped(self, group: str, number: int) -> None:
        for pid, rank in self._near.items():
            if not processes.is_stopped(pid):
                self._stopped.pop(rank, None)
                continue
            self._stopped[rank] = self._stopped.get(rank, 0) + 1
            # Once may be a job that is being continued, one process after the other.
            if self._stopped[rank] == 2 and self._is_speaker():  # noqa: PLR2004
                what = flight.name(group, number)
                text = f"rank {rank} (process {pid}) is stopped; rank {self._rank}"
                self._say(f"{text} waits for it in {what}")

    def _explain(self, group: str, number: int, seconds: float) -> None:
        """Say who is missing, unless a rank before this one waits as well and will."""
        self._read(list(self._peers))
        missing = []
        for rank in range(self._size):
            if rank == self._rank:
                continue
            trouble = self._trouble(rank, group, number)
            if trouble:
                missing.append(f"rank {rank} {trouble}")
            elif rank < self._rank:
                return
        who = "; ".join(missing) or "all ranks are there: the link, or other sizes"
        what = flight.name(group, number)
        text = f"rank {self._rank} has waited {seconds:.1f} s in {what}"
        self._say(f"{text}. {who}")

    def _trouble(self, rank: int, group: str, number: int) -> str:
        """Why a rank may be what is waited for; nothing where it waits too."""
        peer = self._peers.get(rank)
        if peer is None:
            return "is not watched"
        if peer["left"]:
            return str(peer["left"])
        if rank in self._gone:
            return self._gone[rank]
        if rank in self._stopped:
            return "is stopped"
        begun = peer["begun"].get(group, 0)
        place = f"after collective {begun}"
        if peer["beat"] == self._before.get(rank):
            return f"is silent, {place}"
        return "" if begun >= number else f"is {place}, and runs"
