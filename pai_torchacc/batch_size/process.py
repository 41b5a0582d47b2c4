"""A trial in a child process, from the fork to what became of it.

The child is a copy of this process, so it can run closures, and whatever it does to
parameters, optimizers and random state is lost with it. It runs in the thread that
forked, with that thread's modes. It leads a process group, which is killed whatever
happens here; it dies when this process does.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from typing import Any

from pai_torchacc.batch_size import openmp, trial
from pai_torchacc.batch_size.trial import Task
from pai_torchacc.batch_size.watch import Outcome, Watch

_PR_SET_PDEATHSIG = 1


def run(task: Task, timeout: float) -> Outcome:
    """Run a trial in a child process.

    Raises
    ------
    RuntimeError
        This process cannot be forked.
    """
    openmp.pause()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    ends = os.pipe()
    reading, writing = FileIO(ends[0], "rb"), FileIO(ends[1], "wb")
    pid = 0
    # An interrupt between the fork and the assignment would leave an orphan.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            pid = _fork(lambda: _be_child(task, writing, before))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        writing.close()
        return Watch(pid, reading, task, timeout).outcome()
    finally:
        reading.close()
        writing.close()
        if pid:
            _end(pid)


def _fork(be_child: Callable[[], None]) -> int:
    """The child's id; the child itself does not come back."""
    parent = os.getpid()
    with warnings.catch_warnings():
        # Of threads that are missing in the child: the trial is bounded in time.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() == parent:
                be_child()
        finally:
            os._exit(0)
    return pid


def _be_child(task: Task, writing: FileIO, mask: set[Any]) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    said_to = fcntl.fcntl(writing, fcntl.F_DUPFD_CLOEXEC, 3)  # 0 and 1 may be closed
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)

    def send(message: dict[str, Any]) -> None:
        rest = (json.dumps(message) + "\n").encode()
        while rest:
            rest = rest[os.write(said_to, rest) :]

    trial.run(task, send)


def _end(pid: int) -> None:
    """Kill what is left of the child and of processes that it has started."""
    for kill in (os.kill, os.killpg):  # it may lead no group yet
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # SIGCHLD is ignored, or its handler was faster
        os.waitpid(pid, 0)
