"""What the model of :mod:`pai_torchacc.distributed.cost` says of machines not here.

Nothing in these tables was measured. The links are ideal ones of a stated rate.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.targets import Row
from pai_torchacc.distributed.cost import Line, Ring, Step, bubble, ideal_devices

RANKS = (8, 16, 32, 64, 128, 256, 512)
STEP = Step(compute_s=0.2, gradient_bytes=25 << 20)
"""A step of 200 ms with 25 MiB of gradients."""

LINKS = {
    "1 Gbit/s, 100 us": Ring(Line(100e-6, 8e-9)),
    "25 Gbit/s, 20 us": Ring(Line(20e-6, 8e-9 / 25)),
    "400 Gbit/s, 5 us": Ring(Line(5e-6, 8e-9 / 400)),
}
"""Between neighbours of a ring: the rate, and what each message takes besides."""

STAGES = (2, 4, 8, 16, 32, 64)
MICROBATCHES = (4, 16, 64)
SAVED = 0.6

MODEL = "simulated"
"""The variant of these rows."""


def data_parallel(name: str, ring: Ring) -> Iterator[Row]:
    """An all-reduce and the efficiency of a step by ranks, on one kind of link."""
    for n in RANKS:
        ms = ring.allreduce(n).seconds(STEP.gradient_bytes) * 1e3
        yield _row("all-reduce of 25 MiB", f"{name}, {n} ranks", ms, "ms")
        for overlap in (0.0, 0.5):
            figure = f"efficiency, {overlap:.0%} of computing overlaps"
            share = STEP.efficiency(ring, n, overlap) * 100
            yield _row(figure, f"{name}, {n} ranks", share, "%")


def pipelines() -> Iterator[Row]:
    """Time that stages of a pipeline wait."""
    for p in STAGES:
        for m in MICROBATCHES:
            workload = f"{p} stages, {m} micro-batches"
            yield _row("bubble of a pipeline", workload, bubble(p, m) * 100, "%")


def devices() -> Row:
    """How many devices without any loss save 60 % of the time."""
    return _row("ideal devices", f"{SAVED:.0%} less time", ideal_devices(SAVED), "")


def _row(figure: str, workload: str, value: float, unit: str) -> Row:
    return Row(figure, workload, MODEL, "", 1, value, unit)
