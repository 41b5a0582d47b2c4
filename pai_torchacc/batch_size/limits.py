"""How much memory this process may still take, and how much it holds (Linux).

Sources: proc(5) and Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst of
Linux.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_KIB = 1024


@dataclass(frozen=True)
class _Version:
    """Where one version of control groups tells of memory."""

    folder: str
    limit: str
    usage: str
    droppable: tuple[str, ...]
    """In ``memory.stat``: what the kernel gives up before it refuses memory."""


_V1 = _Version(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
_V2 = _Version(
    "sys/fs/cgroup",
    "memory.max",
    "memory.current",
    ("inactive_file", "active_file", "slab_reclaimable"),
)


def available(root: Path = Path("/")) -> int:
    """Bytes that this process can still take.

    The least of what the system, each control group around the process, and its own
    limits (``ulimit -v`` and ``-d``) leave. ``root`` is where /proc and /sys are.

    Raises
    ------
    RuntimeError
        The system does not say.
    """
    left = _numbers(root / "proc/meminfo").get("MemAvailable")
    if left is None:
        raise RuntimeError("/proc/meminfo does not say how much memory is available")
    return max(0, min([left * _KIB, *_left_in_groups(root), *_left_of_own_limits()]))


def _left_in_groups(root: Path) -> Iterator[int]:
    version, path = _group(root)
    while version:
        folder = root / version.folder / path
        limit, usage = _number(folder / version.limit), _number(folder / version.usage)
        if limit is not None and usage is not None:
            stat = _numbers(folder / "memory.stat")
            yield limit - usage + sum(stat.get(name, 0) for name in version.droppable)
        if path == Path():
            return
        path = path.parent


def _group(root: Path) -> tuple[_Version | None, Path]:
    """The group that this process is in; version 1 counts where it has memory."""
    found: tuple[_Version | None, Path] = None, Path()
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            return _V1, Path(path.lstrip("/"))
        if number == "0":
            found = _V2, Path(path.lstrip("/"))
    return found


def _left_of_own_limits() -> Iterator[int]:
    now = status()
    for what, used in (
        (resource.RLIMIT_AS, "VmSize"),
        (resource.RLIMIT_DATA, "VmData"),
    ):
        limit, _ = resource.getrlimit(what)
        if limit != resource.RLIM_INFINITY:
            yield limit - now[used]


def status() -> dict[str, int]:
    """Memory of this process by the names of /proc/self/status, in bytes."""
    numbers = _numbers(Path("/proc/self/status"))
    return {k: n * _KIB for k, n in numbers.items() if k.startswith(("Vm", "Rss"))}


def anonymous() -> int:
    """Bytes of this process in memory that no file backs, counted page by page.

    What the kernel sums up for ``status()`` may be some MiB behind: each CPU has a
    share that it tells now and then.
    """
    rollup = _numbers(Path("/proc/self/smaps_rollup"))
    return rollup["Anonymous"] * _KIB if "Anonymous" in rollup else status()["RssAnon"]


def held(pid: int | str = "self") -> int:
    """Bytes of a process in memory that no file backs; 0 when it has ended."""
    numbers = [int(n) for n in _text(Path(f"/proc/{pid}/statm")).split()]
    return (numbers[1] - numbers[2]) * _PAGE if numbers else 0


def _numbers(path: Path) -> dict[str, int]:
    """Numbers behind names at the beginning of lines."""
    found = re.findall(r"^(\w+):?\s+(\d+)", _text(path), re.M)
    return {name: int(number) for name, number in found}


def _number(path: Path) -> int | None:
    """A file of one number; None for ``max`` and where there is none."""
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
