"""Times of calls on a device, by its events; variants in turn, in one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import pai_torchacc as ptac
from benchmarks.gpu.machine_code import is_emulated
from pai_torchacc import _host
from pai_torchacc.bench.measure import Timing

Call = Callable[[], Any]
MOST_CALLS = 200
"""Of a block: a device takes about a thousand launches before the host waits."""


@dataclass
class Budget:
    """Seconds that are left."""

    seconds: float
    _start: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """From now on, below 0 once they are over."""
        return self._start + self.seconds - time.monotonic()

    def part(self, share: float) -> Budget:
        """A share of what is left."""
        return Budget(max(0.0, self.left * share))


@dataclass(frozen=True)
class Setting:
    """How long things are measured."""

    budget: Budget
    blocks: int = 7
    block_s: float = 0.02
    copy_gb_s: float = 0.0
    """The device's, once it was measured."""


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
    variants: dict[str, tuple[Call, Call]], setting: Setting
) -> dict[str, Timing]:
    """Blocks of calls in turn; each variant is (what prepares the process, call)."""
    counts: dict[str, int] = {}
    for name, (prepare, call) in variants.items():
        prepare()
        for _ in range(2):
            call()
        once = max(timed(call, 1), 1e-7)
        counts[name] = max(1, min(MOST_CALLS, int(setting.block_s / once)))
    times: dict[str, list[float]] = {name: [] for name in variants}
    for block in range(setting.blocks):
        if block and setting.budget.left < 0:
            break
        for name, (prepare, call) in variants.items():
            prepare()
            call()
            times[name].append(timed(call, counts[name]) / counts[name])
    return {name: Timing(tuple(t)) for name, t in times.items()}


def stock() -> None:
    """Switch everything off."""
    ptac.disable()


def ours() -> None:
    """Switch operators on."""
    ptac.enable("operator_fusion")


def served(ops: tuple[str, ...], call: Call) -> str:
    """Which of these operators of ours did a call's work, by their counters.

    Not every operator has one of the gradient's that is counted by itself.
    """
    c = _host.load()
    ours()
    call()  # autograd's and the driver's first calls are over
    known = {name for name, *_ in c.operators()}
    before = {op: c.counters(op) for op in ops if op in known}
    call()
    found = {}
    for op, was in before.items():
        now = c.counters(op)
        reasons = [r for r, n in now[2].items() if n > was[2].get(r, 0)]
        if now[1] > was[1]:
            found[op] = "failed"
        elif reasons:
            found[op] = ", ".join(reasons)
        else:
            found[op] = "yes" if now[0] > was[0] else "not reached"
    if len(set(found.values())) == 1:
        return next(iter(found.values()))
    return "; ".join(f"{op}: {what}" for op, what in found.items())
