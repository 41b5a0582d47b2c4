"""Threads of operators: no more than the processors that this process may use.

torch starts with a thread for each processor that it sees. A control group's quota is
not among what it looks at: in a container limited to two processors of 64, sixty-four
threads wait for each other. A number that the user has set is left as it is.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

_BY_USERS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass
class _Change:
    before: int
    after: int


_changes: list[_Change] = []
"""The one change that is in force, if any."""


def fit() -> None:
    """Lower torch's threads to the processors there are, unless a user has set them.

    A number that torch would not have taken by itself is the user's.
    """
    import torch

    wanted, now = processors(), torch.get_num_threads()
    there = (_affinity(), os.cpu_count() or 1)
    is_torchs = now in (*there, *(n // 2 for n in there))  # a thread a core, or each
    if now > wanted and is_torchs and not _changes and not _by_user():
        _changes.append(_Change(now, wanted))
        torch.set_num_threads(wanted)


def undo() -> None:
    """As many as before; not where others have set another number since."""
    if not _changes:
        return
    torch, change = sys.modules["torch"], _changes.pop()
    if torch.get_num_threads() == change.after:
        torch.set_num_threads(change.before)


def about() -> str:
    """How many threads there are, and why."""
    import torch

    n = torch.get_num_threads()
    text = f"{n} intra-op thread{'s' if n != 1 else ''}"
    quota = cpu_quota()
    limits = f"{_affinity()} processors by affinity"
    limits += "" if quota is None else f", {quota:g} by the control group's quota"
    if _changes and n == _changes[-1].after:
        return f"{text} instead of {_changes[-1].before} ({limits})"
    if set_by := _by_user():
        return f"{text}, as {set_by} says ({limits})"
    return f"{text} ({limits})"


def processors() -> int:
    """Processors that this process may use: by affinity, and by quota, rounded up."""
    quota = cpu_quota()
    return _affinity() if quota is None else max(1, min(_affinity(), math.ceil(quota)))


def _by_user() -> str | None:
    return next((name for name in _BY_USERS if os.environ.get(name)), None)


def _affinity() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Processors that the control group may keep busy; None where nothing limits it.

    Parameters
    ----------
    membership : path
        Which groups this process is in, as the kernel writes ``/proc/self/cgroup``.
    root : path
        Where they are mounted. Of version 2 ``cpu.max`` counts, of version 1
        ``cpu.cfs_quota_us``; the lowest of the group and those around it.
    """
    limits = []
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if not controllers:
            limits += [_version_2(f) for f in _upwards(root, group)]
        elif "cpu" in controllers.split(","):
            for mounted in (root / "cpu", root / controllers):
                limits += [_version_1(f) for f in _upwards(mounted, group)]
    return min((limit for limit in limits if limit is not None), default=None)


def _upwards(root: Path, group: str) -> list[Path]:
    """The group's folder and those around it. In a container not all are there."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [root.joinpath(*parts[:n]) for n in range(len(parts), -1, -1)]


def _version_2(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _version_1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None
