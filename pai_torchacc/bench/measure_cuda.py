"""Timing calls on a CUDA device by its events, once kernels have machine code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.bench.measure import Call, Timing
from pai_torchacc.cuda_kernels import providing

MOST_CALLS = 200
"""Of a block: a device takes about a thousand launches before the host waits."""


def is_emulated() -> bool:
    """Whether ``device="cuda"`` is the emulation of tests/cuda_emulation."""
    return torch.cuda.is_available() and torch.version.cuda is None


def provide(timeout_s: float = 300) -> dict[str, str]:
    """Have the units ready that can be; what became of those that are not.

    The program uses CUDA from here on.
    """
    c = _host.load()
    torch.zeros(1, device="cuda")
    with ptac.enable("operator_fusion"):
        for name, what in c.cuda_units().items():
            if what == "unasked":
                c.cuda_want(name)
        # In a thread, whose priority it lowers.
        thread = threading.Thread(target=providing.run, args=(c,), daemon=True)
        thread.start()
        thread.join(timeout_s)
        providing.wait(timeout_s)
    return {name: _why(c, name) for name, w in c.cuda_units().items() if w != "ready"}


def _why(c: Any, name: str) -> str:
    outcome = providing.state.outcomes.get(name)
    return (outcome and outcome.trouble) or c.cuda_units()[name]


def timed(call: Call, n: int) -> float:
    """Seconds that a device has spent from the first of n calls to the last's end."""
    if is_emulated():
        start = time.perf_counter()
        for _ in range(n):
            call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(n):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def alternate(
    variants: dict[str, tuple[Callable[[], None], Call]],
    blocks: int,
    block_s: float,
    may_go_on: Callable[[], bool] = lambda: True,
) -> dict[str, Timing]:
    """Time variants in turn, as ``measure.alternate()`` does on the CPU.

    Blocks after the first are left out once ``may_go_on`` says so.
    """
    counts: dict[str, int] = {}
    for name, (prepare, call) in variants.items():
        prepare()
        for _ in range(2):
            call()
        once = max(timed(call, 1), 1e-7)
        counts[name] = max(1, min(MOST_CALLS, int(block_s / once)))
    times: dict[str, list[float]] = {name: [] for name in variants}
    for block in range(blocks):
        if block and not may_go_on():
            break
        for name, (prepare, call) in variants.items():
            prepare()
            call()
            times[name].append(timed(call, counts[name]) / counts[name])
    return {name: Timing(tuple(t)) for name, t in times.items()}
