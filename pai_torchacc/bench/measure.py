"""Timing two or more variants against each other in one process.

Blocks of calls alternate between the variants, so that what disturbs the machine
disturbs all alike. Reported are the minimum and the median over blocks; a speed-up is a
ratio of minima, with the ratio of medians and a bootstrap interval beside it.
"""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

Call = Callable[[], Any]

Variants = dict[str, tuple[Callable[[], Any], Call]]
"""By name: what sets the process up for it, and the call."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one number a block."""

    blocks: tuple[float, ...]

    @property
    def best(self) -> float:
        """Least over blocks."""
        return min(self.blocks)

    @property
    def median(self) -> float:
        """Median over blocks."""
        return statistics.median(self.blocks)


def ratio(slow: Timing, fast: Timing) -> float:
    """How many times as fast, by the best blocks."""
    return slow.best / fast.best


def median_interval(slow: Timing, fast: Timing) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio of medians over paired blocks."""
    pairs = list(zip(slow.blocks, fast.blocks, strict=True))
    draw = random.Random(0)
    ratios = sorted(
        statistics.median(s for s, _ in sample)
        / statistics.median(f for _, f in sample)
        for sample in (draw.choices(pairs, k=len(pairs)) for _ in range(1000))
    )
    return ratios[25], ratios[974]


def raise_malloc_thresholds() -> None:
    """Keep freed memory, so that kernel figures are not page fault figures (glibc)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(M_TRIM_THRESHOLD, 2000 << 20)


def release_memory() -> None:
    """Give what no tensor uses back to the system: ours, and libc's (glibc)."""
    import pai_torchacc

    gc.collect()
    pai_torchacc.empty_cache()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def seconds_of(call: Call) -> float:
    """What the second of two calls takes."""
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def repetitions(seconds: float, block_s: float) -> int:
    """Calls that fill a block, of which one takes these seconds."""
    return max(1, int(block_s / max(seconds, 1e-7)))


def alternate(
    variants: Variants,
    blocks: int = 20,
    block_s: float = 0.02,
) -> dict[str, Timing]:
    """Time variants in turn.

    Parameters
    ----------
    variants : dict of name to (prepare, call)
        ``prepare`` sets the process up for the variant (such as switching it on) and is
        not timed; it must be cheap and repeatable.
    blocks : int
        How many times each variant gets its turn.
    block_s : float
        Seconds a turn lasts, about.
    """
    counts = {}
    for name, (prepare, call) in variants.items():
        prepare()
        counts[name] = repetitions(seconds_of(call), block_s)
    return take_turns(variants, counts, blocks)


def take_turns(
    variants: Variants, counts: dict[str, int], blocks: int, warms_up: bool = True
) -> dict[str, Timing]:
    """Time so many calls of each variant in each of the blocks.

    ``warms_up`` puts a call before each block that is not timed.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(blocks):
        for name, (prepare, call) in variants.items():
            prepare()
            if warms_up:
                call()
            start = time.perf_counter()
            for _ in range(counts[name]):
                call()
            times[name].append((time.perf_counter() - start) / counts[name])
    return {name: Timing(tuple(t)) for name, t in times.items()}


def thread_counts() -> list[int]:
    """1, 2, 4 ... up to the cores this process may use."""
    cores = len(os.sched_getaffinity(0))
    return [n for n in (1 << i for i in range(10)) if n <= cores]


def environment() -> dict[str, str]:
    """What a figure depends on: machine, versions, commit."""
    import torch

    import pai_torchacc
    from pai_torchacc import _host

    model, isa = _host.load().cpu()
    return {
        "cpu": f"{_cpu_name()} ({model}, {isa}), {len(os.sched_getaffinity(0))} cores",
        "torch": torch.__version__,
        "pai_torchacc": pai_torchacc.__version__,
        "python": platform.python_version(),
        "commit": _commit(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (x.partition(": ")[2] for x in lines if x.startswith("model name")), "?"
    )


def _commit() -> str:
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()
