"""Threads of one rank among the ranks of a machine, before torch starts.

torchrun gives every rank one thread. Here a rank gets as many as its share of the cores
that the process may use, less where a control group's quota is less. It is not bound to
these cores: docs/distributed.md has what that was measured to do.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SHARED_OUT = "PTAC_RANK_THREADS"
"""``launch`` sets it to ``auto``; a rank sets it to its number for its own children."""


def usable() -> list[int]:
    """The cores that this process may run on."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return list(range(os.cpu_count() or 1))


def quota(root: Path = Path("/sys/fs/cgroup"), own: str | None = None) -> float | None:
    """Cores' worth of time that control groups allow, None where they set no limit.

    ``own`` is what /proc/self/cgroup says.
    """
    if own is None:
        try:
            own = Path("/proc/self/cgroup").read_text(encoding="utf-8")
        except OSError:
            return None
    limits = []
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        base = root / "cpu" if "cpu" in controllers.split(",") else root
        if controllers and base == root:
            continue
        folder = base / path.lstrip("/")
        while folder.is_relative_to(base):
            limits += _limit(folder)
            if folder == base:
                break
            folder = folder.parent
    return min(limits, default=None)


def _limit(folder: Path) -> list[float]:
    try:
        if (folder / "cpu.max").exists():
            words = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [(folder / n).read_text(encoding="ascii").strip() for n in names]
        allowed, period = float(words[0]), float(words[1])
    except (OSError, ValueError, IndexError):  # "max": no limit
        return []
    return [allowed / period] if allowed > 0 else []


def share(cores: list[int], allowed: float | None, rank: int, n: int) -> list[int]:
    """The cores of one of n ranks: its part of them, of equal sizes, in order.

    Where there are fewer cores than ranks, one that others have too. ``allowed`` is
    :func:`quota`.
    """
    n_each = len(cores) // n
    if n_each == 0:
        return [cores[rank % len(cores)]]
    if allowed is not None:
        n_each = max(1, min(n_each, int(allowed / n)))
    start = rank * (len(cores) // n)
    return cores[start : start + n_each]


def take_share(environment: Mapping[str, str] = os.environ) -> None:
    """In a rank that ``launch`` started: set how many threads it has.

    Only where ``launch`` was left to choose. Called before torch is imported, which
    reads ``OMP_NUM_THREADS`` once.
    """
    if environment.get(SHARED_OUT) != "auto":
        return
    try:
        rank, n = int(environment["LOCAL_RANK"]), int(environment["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return  # the launcher itself
    own = share(usable(), quota(), rank, n)
    # Children have it from here; a second sharing would halve it.
    os.environ[SHARED_OUT] = os.environ["OMP_NUM_THREADS"] = str(len(own))
