"""How fast a process group's all-reduce is, measured once, the same answer everywhere.

All ranks call this in the same order, as they call every collective. It takes a few
milliseconds on one machine, some 60 on a link of 1 Gbit/s.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pai_torchacc.distributed.cost import MIB, Line

SIZES = (4 << 10, 256 << 10, MIB)
TIMES = 4
"""How often each size is sent; the fastest counts."""


@dataclass(frozen=True)
class Probe:
    """What was measured on a process group of CPU tensors."""

    allreduce: Line
    bf16_gain: float
    """Float32's time by bfloat16's, with rounding and back, for 1 MiB of float32."""

    @property
    def mb_per_s(self) -> float:
        """Megabytes of gradients a second; those of other ranks do not count."""
        return 1e-6 / max(self.allreduce.beta_s_per_byte, 1e-15)

    def __str__(self) -> str:
        return (
            f"all-reduce {self.allreduce.alpha_s * 1e6:.0f} us + "
            f"{self.mb_per_s:.0f} MB/s, bf16 {self.bf16_gain:.2f}x"
        )


_known: weakref.WeakKeyDictionary[Any, Probe] = weakref.WeakKeyDictionary()


def of(group: Any) -> Probe:
    """What this group's all-reduce takes; measured at the first call for the group.

    The slowest rank's time counts, so every rank has the same numbers and what follows
    from them is the same everywhere.
    """
    if group not in _known:
        _known[group] = _measure(group)
    return _known[group]


def known(group: Any) -> Probe | None:
    """What was measured on this group, if anything was."""
    return _known.get(group)


def _measure(group: Any) -> Probe:
    import torch
    import torch.distributed as dist

    with torch.no_grad():
        values = torch.zeros(SIZES[-1] // 4, dtype=torch.float32, device="cpu")
        least = [
            _least(lambda n=n: dist.all_reduce(values[: n // 4], group=group))  # type: ignore[misc]
            for n in SIZES
        ]
        least.append(_least(lambda: _rounded(values, group)))
        # Dtype and device are named: the program may have set other defaults.
        agreed = torch.tensor(least, dtype=torch.float64, device="cpu")
        dist.all_reduce(agreed, op=dist.ReduceOp.MAX, group=group)
    *seconds, rounded = agreed.tolist()
    line = Line.fit(zip(SIZES, seconds, strict=True))
    return Probe(line, seconds[-1] / rounded)


def _rounded(values: Any, group: Any) -> None:
    import torch
    import torch.distributed as dist

    sent = values.to(torch.bfloat16)
    dist.all_reduce(sent, group=group)
    values.copy_(sent)


def _least(send: Callable[[], object]) -> float:
    send()  # connections and memory are there afterwards
    best = float("inf")
    for _ in range(TIMES):
        start = time.perf_counter()
        send()
        best = min(best, time.perf_counter() - start)
    return best
