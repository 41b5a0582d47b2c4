"""Whether the CPUs were ours while a trial was timed (Linux).

With OpenMP one thread that waits for a CPU holds up all: a neighbour that takes half of
one core can make a step of a millisecond a hundred times as long.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_TASKS = Path("/proc/self/task")

_SHARE = 0.05
"""Of a stretch of time: from which wait on, threads together, it was disturbed."""


def waited_s() -> float:
    """Seconds that threads of this process could have run and had no CPU.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/<pid>/schedstat. 0
    where the kernel does not count.
    """
    waited_ns = 0
    with suppress(OSError):
        for task in _TASKS.iterdir():
            with suppress(OSError, IndexError):  # it may have ended meanwhile
                waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns * 1e-9


def are_quiet(waited_s: float, elapsed_s: float) -> bool:
    """Whether threads have waited so little in this time that it may be counted."""
    return waited_s <= _SHARE * elapsed_s
