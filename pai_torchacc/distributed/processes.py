"""Other processes of this machine: whether they live, are stopped, how they ended."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_STATE, _EXIT_CODE = 0, 49
"""Places in /proc/PID/stat after the name, see proc_pid_stat(5)."""

_GET_INFO = 0xC040FF0B
_WITH_EXIT = 1 << 3
_INFO = struct.Struct("=Q52xi")
"""``PIDFD_GET_INFO`` of linux/pidfd.h: what is asked for and told, the exit code."""


@dataclass(frozen=True)
class End:
    """How a process has ended; nobody may know, once its parent has asked."""

    signal: int = 0
    status: int | None = None

    def __str__(self) -> str:
        if self.signal:
            return f"was killed by {_name(self.signal)}"
        return "is gone" if self.status is None else f"ended with status {self.status}"


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
        self._without_file: set[int] = set()
        self._bell, self._ear = socket.socketpair()
        self._poll.register(self._ear, select.POLLIN)

    def add(self, pid: int) -> None:
        """Wait for this process too, which may be gone already."""
        try:
            file = os.pidfd_open(pid)
        except (OSError, AttributeError):
            # Gone, or refused by an old kernel, a sandbox, a limit.
            self._without_file.add(pid)
            return
        self._poll.register(file, select.POLLIN)
        self._by_file[file] = pid

    def wait(self, seconds: float) -> dict[int, End]:
        """The processes that have ended, after this time or once there is one."""
        is_known = any(_is_over(_stat(pid)) for pid in self._without_file)
        ready = [f for f, _ in self._poll.poll(0 if is_known else seconds * 1e3)]
        ended = {}
        for file in ready:
            if file == self._ear.fileno():
                self._ear.recv(64)
            else:
                ended[self._by_file[file]] = _how_it_ended(self._by_file[file], file)
                self._forget(file)
        for pid in [p for p in self._without_file if _is_over(_stat(p))]:
            ended[pid] = _how_it_ended(pid)
            self._without_file.remove(pid)
        return ended

    def wake(self) -> None:
        """End the wait of another thread, or its next one."""
        with suppress(OSError):  # nobody waits any more
            self._bell.send(b".")

    def _forget(self, file: int) -> None:
        self._poll.unregister(file)
        del self._by_file[file]
        os.close(file)

    def close(self) -> None:
        """Wait for none."""
        for file in list(self._by_file):
            self._forget(file)
        self._bell.close()
        self._ear.close()

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _how_it_ended(pid: int, file: int | None = None) -> End:
    """By the file of a process, from Linux 6.15 on, or before its parent has asked."""
    code = None
    if file is not None:
        data = bytearray(_INFO.pack(_WITH_EXIT, 0))
        with suppress(OSError):
            fcntl.ioctl(file, _GET_INFO, data)
            told, found = _INFO.unpack(data)
            code = found if told & _WITH_EXIT else None
    fields = _stat(pid)
    if code is None and _is_over(fields) and len(fields) > _EXIT_CODE:
        code = int(fields[_EXIT_CODE])
    if code is None:
        return End()
    number = code & 0x7F
    return End(number, None if number else code >> 8)


def _is_over(fields: list[str]) -> bool:
    return not fields or fields[_STATE] in ("Z", "X")


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
