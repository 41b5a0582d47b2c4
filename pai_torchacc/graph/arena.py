"""One piece of memory for what a plan works in: offsets by lifetimes."""

from __future__ import annotations

from dataclasses import dataclass, field

from pai_torchacc.graph.ir import Value

_ALIGNMENT = 64


@dataclass
class Lifetime:
    """From the step that writes a value to the last that reads it, both included."""

    value: Value
    n_bytes: int
    first: int
    last: int


@dataclass
class Placed:
    """Offsets, and what they come to."""

    offsets: dict[Value, int] = field(default_factory=dict)
    n_bytes: int = 0
    live_peak_bytes: int = 0
    """The most that is alive at a time: no placement needs less."""


def place(lifetimes: list[Lifetime]) -> Placed:
    """Place the largest first, each at the lowest offset that is free while it lives.

    Y. Pisarchyk and J. Lee, "Efficient Memory Management for Deep Neural Net
    Inference", 2020: greedy by size.
    """
    placed = Placed()
    rounded = {id(one): _rounded(one.n_bytes) for one in lifetimes}
    done: list[tuple[int, int, Lifetime]] = []
    for one in sorted(lifetimes, key=lambda one: (-one.n_bytes, one.first)):
        offset = 0
        for begin, end, other in done:
            if other.last < one.first or other.first > one.last:
                continue
            if begin - offset >= rounded[id(one)]:
                break
            offset = max(offset, end)
        placed.offsets[one.value] = offset
        end = offset + rounded[id(one)]
        done.append((offset, end, one))
        done.sort(key=lambda entry: entry[0])
        placed.n_bytes = max(placed.n_bytes, end)
    n_steps = max((one.last for one in lifetimes), default=-1) + 1
    for step in range(n_steps):
        alive = sum(rounded[id(o)] for o in lifetimes if o.first <= step <= o.last)
        placed.live_peak_bytes = max(placed.live_peak_bytes, alive)
    return placed


def _rounded(n_bytes: int) -> int:
    return -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
