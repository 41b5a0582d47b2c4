"""How long things are measured, and which of our operators did the work."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.bench import measure_cuda
from pai_torchacc.bench.measure import Call, Timing


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


def alternate(
    variants: dict[str, tuple[Call, Call]], setting: Setting
) -> dict[str, Timing]:
    """Blocks of calls in turn; each variant is (what prepares the process, call)."""
    return measure_cuda.alternate(
        variants, setting.blocks, setting.block_s, lambda: setting.budget.left > 0
    )


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
