"""Other processes of this machine: whether they live, are stopped, how they ended."""

from __future__ import annotations

import os
import select
import signal
import socket
from contextlib import suppress
from pathlib import Path

_STATE, _EXIT_CODE = 0, 49
"""Places in /proc/PID/stat after the name, see proc_pid_stat(5)."""


def home() -> str:
    """Where process numbers mean the same: the machine and its process namespace."""
    space = ""
    with suppress(OSError):
        space = f" {Path('/proc/self/ns/pid').readlink()}"
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        space += f" {boot.strip()}"
    return socket.gethostname() + space


class Ends:
    """Waits for processes to end, which need not be children."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._by_file: dict[int, int] = {}

    def add(self, pid: int) -> bool:
        """Wait for this process too; False where it is gone, or Linux too old."""
        try:
            file = os.pidfd_open(pid)
        except (OSError, AttributeError):
            return False
        self._poll.register(file, select.POLLIN)
        self._by_file[file] = pid
        return True

    def wait(self, seconds: float) -> list[int]:
        """The processes that have ended, after this time or once there is one."""
        ended = [self._by_file[file] for file, _ in self._poll.poll(seconds * 1e3)]
        for file, pid in list(self._by_file.items()):
            if pid in ended:
                self._forget(file)
        return ended

    def _forget(self, file: int) -> None:
        self._poll.unregister(file)
        del self._by_file[file]
        os.close(file)

    def close(self) -> None:
        """Wait for none."""
        for file in list(self._by_file):
            self._forget(file)

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def how_it_ended(pid: int) -> str:
    """The signal or status of a process that its parent has not asked about yet."""
    fields = _stat(pid)
    if len(fields) <= _EXIT_CODE:
        return "is gone"
    code = int(fields[_EXIT_CODE])
    if number := code & 0x7F:
        return f"was killed by {_name(number)}"
    return f"ended with status {code >> 8}"


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped this process, or a debugger."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] in ("T", "t")


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
