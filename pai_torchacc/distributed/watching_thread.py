"""The thread of the switch ``watch_ranks``.

Each rank's state is one key of the process group's store: which process it is, and by
process group how many collectives it has begun. What has happened is found out where
the rank waits that nothing has happened to. No other thread uses this one's connection
to the store: the store may be a process that is stopped, and does not answer.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pai_torchacc.distributed import flight, processes

log = logging.getLogger("pai_torchacc")

BEAT_S = 0.25

FAILED = "failed"
"""With what the last words of a rank begin that an error has ended."""

UNWATCHED = "is no longer watched"
"""The last words of a rank that goes on without its watcher."""

_OF_OTHERS = ("gloo/transport", "Connection closed by peer", "Connection reset by peer")
"""What is in an error of a collective that another rank has ended."""

_MEETING_S = 10.0
"""How long ranks that have not told yet are looked for at ten times the pace."""

_LAST_LOOK_S = 0.5
"""How long a rank that fails by others waits to hear of what happened to them."""

_LAST_WORDS_S = 1.0
"""How long a rank waits for its store to take its last words."""

_SILENCE_S = 4 * BEAT_S
"""After how long without a beat of another rank that one is silent."""

_IS_STORE_OF_AGENT = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
"""Whether torchrun holds the store, not rank 0."""

State = dict[str, Any]
"""``pid``, ``home``, ``beat``; ``begun`` by process group; why it ``left``, or None."""


@dataclass
class _Wait:
    """A collective that this rank waits in."""

    number: int
    since: float = field(default_factory=time.monotonic)
    before: dict[int, int] = field(default_factory=dict)
    """Beats of the others in mid-wait."""
    before_at: float | None = None
    is_explained: bool = False


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
        self._ends = processes.Ends()
        self._over = threading.Event()
        self._last_words: str | None = None
        self._is_victim = False
        self._places: dict[str, flight.Place] = {}
        self._peers: dict[int, State] = {}  # as they have told last
        self._near: dict[int, int] = {}  # rank by process, on this machine
        self._gone: dict[int, processes.End] = {}
        self._is_caused = False
        self._stopped: dict[int, int] = {}  # by rank, beats for which it was so
        self._waits: dict[str, _Wait] = {}

    def is_of_this_process(self) -> bool:
        """False in a child that a fork has made."""
        return self._pid == os.getpid()

    def run(self) -> None:
        """Watch until this rank leaves; without a store, the processes of this home."""
        until = time.monotonic() + _MEETING_S
        with self._ends:
            while not self._over.is_set():
                self._tell()
                self._meet()
                is_quick = self.n_met < self._size - 1 and time.monotonic() < until
                self._wait(BEAT_S / 10 if is_quick else BEAT_S)
                self._look()
            if self._is_victim:
                self._look_for_the_cause()
            self._own["left"] = self._last_words
            self._tell()

    @property
    def n_met(self) -> int:
        """How many other ranks tell where they are."""
        return sum(
            peer["left"] is None and rank not in self._gone
            for rank, peer in list(self._peers.items())
        )

    def leave(self, why: str, error: BaseException | None = None) -> None:
        """Tell the others why this rank goes, and end; called by another thread.

        An error of a collective that another rank has ended is explained first.
        """
        self._last_words, self._is_victim = why, is_by_others(str(error))
        self._over.set()
        self._ends.wake()
        self.join(_LAST_WORDS_S + (_LAST_LOOK_S if self._is_victim else 0))

    @staticmethod
    def _key(rank: int) -> str:
        return f"rank{rank}"

    def _ask(self, question: Callable[[Any], Any]) -> Any:
        """What the store answers; nothing once it has ended, maybe with a rank."""
        if self._store is None:
            return None
        try:
            return question(self._store)
        except (RuntimeError, OSError) as error:
            log.debug("ranks no longer tell where they are: %s", error)
            self._store = None
            return None

    def _tell(self) -> None:
        self._places = flight.places()
        self._own["beat"] += 1
        self._own["begun"] = {g: place.begun for g, place in self._places.items()}
        text = json.dumps(self._own)
        self._ask(lambda store: store.set(self._key(self._rank), text))

    def _has_told(self, rank: int) -> bool:
        key = self._key(rank)
        return bool(self._ask(lambda store: store.check([key])))

    def _read(self, ranks: list[int]) -> None:
        keys = [self._key(rank) for rank in ranks]
        told = self._ask(lambda store: store.multi_get(keys)) or []
        self._peers.update(zip(ranks, map(json.loads, told), strict=False))

    def _meet(self) -> None:
        """Take up ranks that have begun to tell.

        One that has left may come back: a group after this one may have the same store.
        """
        for rank in range(self._size):
            known = self._peers.get(rank)
            is_taken_up = known and (known["left"] is None or rank in self._gone)
            if rank == self._rank or is_taken_up:
                continue
            if known or self._has_told(rank):
                self._read([rank])
            peer = self._peers.get(rank)
            if not peer or peer["left"] or peer["home"] != self._own["home"]:
                continue
            if peer["pid"] not in self._near:
                self._near[peer["pid"]] = rank
                self._ends.add(peer["pid"])

    def _wait(self, seconds: float) -> None:
        """Until this time is over or this rank leaves; note who has ended."""
        for pid, end in self._ends.wait(seconds).items():
            rank = self._near.pop(pid)
            self._gone[rank] = end
            if rank == 0 and not _IS_STORE_OF_AGENT:
                self._store = None  # it held the store: to ask it prints warnings
            if not end.signal:
                # A launcher may end this rank in a moment: what is known is said first.
                self._read([rank])
            left = str(self._peers[rank]["left"] or "")
            if left.startswith(FAILED):
                if not is_by_others(left):
                    self._say_cause(rank, left)
            elif end.signal or end.status:
                self._say_cause(rank, f"(process {pid}) {end}")

    def _look_for_the_cause(self) -> None:
        """Before this rank ends by an error of a collective: say whose fault it is."""
        until = time.monotonic() + _LAST_LOOK_S
        while not self._is_caused and time.monotonic() < until:
            self._read(list(self._peers))
            ends = {rank: str(end) for rank, end in self._gone.items()}
            for rank, peer in self._peers.items():
                if peer["left"] not in (None, UNWATCHED):
                    ends[rank] = str(peer["left"])
            for is_failed in (True, False):
                for rank, how in sorted(ends.items()):
                    if how.startswith(FAILED) == is_failed and not is_by_others(how):
                        self._say_cause(rank, how)
            self._wait(BEAT_S / 10)

    def _say_cause(self, rank: int, how: str) -> None:
        """Name a rank whose end others may fail by; what ends later ends by that."""
        if self._is_caused:
            return
        self._is_caused = True
        if not self._is_speaker():
            # Unless one that was to speak has left since it was heard of.
            self._read(sorted(self._near.values()))
        if self._is_speaker():
            peer, text = self._peers[rank], f"rank {rank} {how}"
            if peer["left"]:  # else what it has told is of some time before
                text += f", after {max(peer['begun'].values(), default=0)} collectives"
            self._say(text + self._where())

    def _is_speaker(self) -> bool:
        """Of the ranks of a machine the first that is well speaks."""
        return not any(
            rank < self._rank
            and rank not in self._stopped
            and (not (left := self._peers[rank]["left"]) or is_by_others(left))
            for rank in self._near.values()
        )

    def _where(self) -> str:
        for group, place in flight.places().items():
            if place.is_waiting and flight.ranks_of(group):
                what = f"collective {place.begun}"
                if flight.is_quick():
                    what = flight.name(group, place.begun)
                return f"; rank {self._rank} waits in {what}"
        return ""

    def _say(self, text: str) -> None:
        log.error("pai_torchacc: %s", text)

    def _look(self) -> None:
        """Find out about long waits, and in short ones about ranks that are stopped."""
        waits = {
            group: place.begun
            for group, place in self._places.items()
            if place.is_waiting and flight.ranks_of(group)
        }
        kept = {g: w for g, w in self._waits.items() if waits.get(g) == w.number}
        self._waits = {g: kept.get(g) or _Wait(number) for g, number in waits.items()}
        self._look_for_stopped(next(iter(kept.items()), None))
        for group, wait in kept.items():
            now = time.monotonic()
            seconds = now - wait.since
            if wait.before_at is None and seconds >= self.after / 2:
                self._read(list(self._peers))
                wait.before = {r: p["beat"] for r, p in self._peers.items()}
                wait.before_at = now
            is_due = seconds >= self.after and not wait.is_explained
            if is_due and wait.before_at and now - wait.before_at >= _SILENCE_S:
                wait.is_explained = True
                self._explain(group, wait, seconds)

    def _look_for_stopped(self, waiting: tuple[str, _Wait] | None) -> None:
        if waiting is None:
            self._stopped.clear()
            return
        group, wait = waiting
        for pid, rank in self._near.items():
            if not processes.is_stopped(pid):
                self._stopped.pop(rank, None)
                continue
            self._stopped[rank] = self._stopped.get(rank, 0) + 1
            # Once may be a job that is being continued, one process after the other.
            if self._stopped[rank] == 2 and self._is_speaker():  # noqa: PLR2004
                what = flight.name(group, wait.number)
                text = f"rank {rank} (process {pid}) is stopped; rank {self._rank}"
                self._say(f"{text} waits for it in {what}")

    def _explain(self, group: str, wait: _Wait, seconds: float) -> None:
        """Say who is missing, unless a rank before this one waits as well and will."""
        self._read(list(self._peers))
        missing = []
        for rank in flight.ranks_of(group):
            if rank == self._rank:
                continue
            trouble = self._trouble(rank, group, wait)
            if trouble:
                missing.append(f"rank {rank} {trouble}")
            elif rank < self._rank:
                return
        who = "; ".join(missing) or "all ranks are there: the link, or other sizes"
        what = flight.name(group, wait.number)
        text = f"rank {self._rank} has waited {seconds:.1f} s in {what}"
        self._say(f"{text}. {who}")

    def _trouble(self, rank: int, group: str, wait: _Wait) -> str:
        """Why a rank may be what is waited for; nothing where it waits too."""
        peer = self._peers.get(rank)
        if peer is None:
            return "is not watched"
        if peer["left"]:
            return str(peer["left"])
        if rank in self._gone:
            return str(self._gone[rank])
        if rank in self._stopped:
            return "is stopped"
        if self._store is None:
            return "no longer tells where it is"
        place = f"after collective {peer['begun'].get(group, 0)}"
        if peer["beat"] == wait.before.get(rank):
            return f"is silent, {place}"
        is_there = peer["begun"].get(group, 0) >= wait.number
        return "" if is_there else f"is {place}, and runs"


def is_by_others(error: str) -> bool:
    """Whether this is what a collective says whose other ranks have ended."""
    return any(text in error for text in _OF_OTHERS)
