"""Waiting for the child of a trial: what it says, what it holds, how it ends."""

from __future__ import annotations

import json
import os
import select
import signal
import time
from dataclasses import dataclass, field
from io import FileIO
from typing import Any

from pai_torchacc.batch_size import errors, limits
from pai_torchacc.batch_size.trial import Task

_LOOK_S = 0.02
"""How often the child's memory is looked at, at least."""

_MUCH = 0.25
"""The share of the limit from which a death is put down to memory."""


@dataclass
class Outcome:
    """What became of a trial. Bytes are beyond what was held at its beginning."""

    n: int
    seconds: float = 0.0
    """Of a step: the median of the faster half."""
    n_steps: int = 0
    """How many of them were timed."""
    is_quiet: bool = True
    """Whether the CPUs were free for these."""
    held: int = 0
    """Held at most while steps were timed."""
    need: int = 0
    """Held at most with the memory pool on, where it can be."""
    leak: int = 0
    """Held more after each step."""
    limit: int = 0
    shapes: list[list[int]] = field(default_factory=list)
    """Of the tensors in the last batch."""
    no_memory: str | None = None
    """How memory was lacking."""
    error: BaseException | None = None
    """What else it raised."""


class Watch:
    """Waits for a child: what it says, how much it holds, how it ends."""

    def __init__(self, pid: int, reading: FileIO, task: Task, timeout: float):
        self._pid, self._reading, self._timeout = pid, reading, timeout
        self._least_available = task.least_available
        self._ends = time.monotonic() + timeout
        self._about = f"in a trial of find_batch_size with a batch of {task.n}"
        self._found = Outcome(task.n)
        self._text = b""
        self._base: int | None = None
        self._most = 0
        self._most_seen = 0
        self._is_over = False

    def outcome(self) -> Outcome:
        """Wait for the end of the trial.

        Raises
        ------
        TimeoutError
            It does not come in time.
        """
        while not self._is_over:
            self._read(_LOOK_S)
            if not self._is_over:
                self._look()
            if not self._is_over and time.monotonic() > self._ends:
                raise TimeoutError(f"{self._timeout:g} seconds were over {self._about}")
        return self._found

    def _read(self, patience_s: float) -> bool:
        """Hear what the child says within this time; whether it has said something."""
        if not select.select([self._reading], [], [], patience_s)[0]:
            return False
        some = self._reading.read(1 << 16)
        if not some:  # the end: nobody is left to write
            time.sleep(patience_s)
            return False
        *lines, self._text = (self._text + some).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        return True

    def _hear(self, message: dict[str, Any]) -> None:
        found = self._found
        match message["kind"]:
            case "base":
                self._base = message["base"]
                self._most = found.limit = message["limit"]
            case "steps":
                found.held = max(found.held, message["peak"])
                found.limit = message.get("limit", found.limit)
                found.shapes = message["shapes"]
                self._most_seen = max(self._most_seen, message["peak"])
            case "seen":
                self._most_seen = max(self._most_seen, message["peak"])
            case "time":
                found.seconds, found.n_steps = message["seconds"], message["n_steps"]
                found.is_quiet = message["is_quiet"]
            case "need":
                found.need, found.leak = message["need"], message["leak"]
            case "error":
                self._is_over = True
                self._settle_error(message)
            case "end":
                self._is_over = True
                if max(found.held, found.need) > found.limit:
                    found.no_memory = "it needs more"

    def _settle_error(self, message: dict[str, Any]) -> None:
        if message["memory"] or (message["perhaps_memory"] and self._held_much()):
            text = message["text"].strip().partition("\n")[0]
            self._found.no_memory = ": ".join(filter(None, (message["class"], text)))
        else:
            self._found.error = errors.restored(message, self._about)

    def _held_much(self) -> bool:
        return self._most_seen > _MUCH * self._most

    def _look(self) -> None:
        """How much the child holds now, and whether it is still there."""
        if self._base is not None:
            grown = limits.held(self._pid) - self._base
            self._most_seen = max(self._most_seen, grown)
            if grown > self._most:
                self._found.no_memory = "it needs more"
                self._is_over = True
        if self._least_available > 0 and limits.available() < self._least_available:
            self._found.no_memory = "the system has nothing left"
            self._is_over = True
        try:
            end = os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # SIGCHLD is ignored, or its handler was faster
            is_killed, how = False, "an unknown status"
        else:
            if end is None:
                return
            is_exit = end.si_code == os.CLD_EXITED
            is_killed = not is_exit and end.si_status == signal.SIGKILL
            how = f"{'exit status' if is_exit else 'signal'} {end.si_status}"
        while not self._is_over and self._read(0):
            pass
        if not self._is_over:
            self._has_died(is_killed, how)

    def _has_died(self, is_killed: bool, how: str) -> None:
        """Without having said why; what the system kills, it kills for memory."""
        self._is_over = True
        if is_killed or self._held_much():
            self._found.no_memory = f"{how} ended the process"
        else:
            self._found.error = RuntimeError(f"{how} ended the process {self._about}")
