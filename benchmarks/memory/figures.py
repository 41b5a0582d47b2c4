"""What samples amount to: medians, ratios, means."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.memory.variants import PEERS
from benchmarks.targets import Row

WARM_UP = 10
"""Steps before the steady state."""

MIXED = ("W1", "W3", "W4", "W4g", "W5", "UN")
"""Whose geometric mean stands for training."""

MICRO = "micro"
"""Stands where a workload would: the allocator alone."""

GEOMEAN = "geomean"
GEOMEAN_WITH_EW = "geomean with EW"


Cell = tuple[str, str, int]
"""Workload, variant, number of threads."""


@dataclass(frozen=True)
class Run:
    """What one process said about its steps."""

    workload: str
    variant: str
    n_threads: int
    round: int
    ms: list[float]
    faults: list[int]
    base_bytes: int
    """Anonymous memory after the imports."""
    peak_bytes: int
    """Most anonymous memory, the imports' included."""
    idle_bytes: int
    """Anonymous memory when the tensors are gone and libc has given back its share."""
    max_rss_bytes: int
    bits: str
    switch_on_ms: float
    arena_bytes: list[int] | None = None
    """The pool's high water after each step."""
    pool: dict[str, Any] | None = None

    @property
    def warm(self) -> slice:
        """The steps that count: after ten, or half of a short run."""
        return slice(min(WARM_UP, len(self.ms) // 2), None)

    @property
    def median_ms(self) -> float:
        """Median of the steps that count."""
        return statistics.median(self.ms[self.warm])

    @property
    def faults_per_step(self) -> float:
        """Mean over the steps that count."""
        return statistics.mean(self.faults[self.warm])

    @property
    def settled_faults(self) -> float | None:
        """Mean over those that did not raise the pool's high water; None without."""
        if self.arena_bytes is None:
            return None
        first, *_ = self.warm.indices(len(self.ms))
        settled = [
            self.faults[i]
            for i in range(max(first, 1), len(self.ms))
            if self.arena_bytes[i] == self.arena_bytes[i - 1]
        ]
        return statistics.mean(settled) if settled else None


@dataclass(frozen=True)
class Live:
    """The most bytes that tensors had at one time, alike where all are only placed."""

    live_bytes: int
    pooled_bytes: int
    """Of tensors that are large enough for the pool."""
    allocations_per_step: float


@dataclass(frozen=True)
class Micro:
    """What one process said about its allocator alone."""

    variant: str
    n_threads: int
    round: int
    fill: dict[str, dict[str, float]]
    empty_ns: dict[str, float]
    pair_ns: dict[str, float] | None = None


@dataclass
class Samples:
    """All that was measured."""

    runs: list[Run] = field(default_factory=list)
    live: dict[Cell, Live] = field(default_factory=dict)
    micro: list[Micro] = field(default_factory=list)


def rows(samples: Samples) -> list[Row]:
    """All figures of these samples."""
    runs: dict[Cell, list[Run]] = defaultdict(list)
    for run in sorted(samples.runs, key=lambda r: r.round):
        runs[run.workload, run.variant, run.n_threads].append(run)
    wrong = _numerics(samples.runs)
    found: list[Row] = []
    for cell, of_cell in runs.items():
        workload, variant, n = cell
        live = samples.live.get(cell) or samples.live.get((workload, "stock", n))
        stock = runs.get((workload, "stock", n), [])
        found += _alone(cell, of_cell, live, _overhead(stock))
        for against in ("stock", *PEERS):
            rival = runs.get((workload, against, n))
            if rival and _is_compared(variant, against):
                equal = not {cell, (workload, against, n)} & wrong
                found += _compared(cell, against, rival, of_cell, equal)
    found += _tensors(samples.live)
    return found + list(_means(found)) + list(_micro(samples.micro))


def _is_compared(variant: str, against: str) -> bool:
    """Everything with stock, the pool with its peers as well."""
    return variant == "pool" or (variant != "stock" and against == "stock")


def _numerics(runs: Iterable[Run]) -> set[Cell]:
    """Cells whose last results differ from stock's or among themselves."""
    bits: dict[Cell, set[str]] = defaultdict(set)
    for run in runs:
        bits[run.workload, run.variant, run.n_threads].add(run.bits)
    return {
        (workload, variant, n)
        for (workload, variant, n), own in bits.items()
        if len(own | bits.get((workload, "stock", n), set())) > 1
    }


def _median(runs: list[Run], of: Callable[[Run], float]) -> float:
    return statistics.median(map(of, runs))


def _overhead(stock: list[Run]) -> float | None:
    """Bytes of the process's own that no tensor holds: modules, plans, the graph."""
    if not stock:
        return None
    return _median(stock, lambda r: max(0, r.idle_bytes - r.base_bytes))


def _alone(
    cell: Cell, runs: list[Run], live: Live | None, overhead: float | None
) -> Iterator[Row]:
    def row(figure: str, value: float, unit: str) -> Row:
        return Row(figure, cell[0], cell[1], "", cell[2], value, unit)

    medians = [r.median_ms for r in runs]
    middle = statistics.median(medians)
    yield row("step", middle, "ms")
    yield row("spread of steps", 100 * (max(medians) - min(medians)) / middle, "%")
    yield row("first step", _median(runs, lambda r: r.ms[0]), "ms")
    yield row("switching on", _median(runs, lambda r: r.switch_on_ms), "ms")
    yield row("faults", _median(runs, lambda r: r.faults_per_step), "a step")
    settled = [r.settled_faults for r in runs if r.settled_faults is not None]
    if settled:
        yield row("settled faults", statistics.median(settled), "a step")
    yield row("peak", _median(runs, lambda r: r.peak_bytes) / 2**20, "MiB")
    if live is None:
        return
    if overhead is not None:
        own = _median(runs, lambda r: r.peak_bytes - r.base_bytes) - overhead
        yield row("RSS / live", own / live.live_bytes, "")
    if all(r.arena_bytes for r in runs):
        arena = _median(runs, lambda r: r.arena_bytes[-1])
        yield row("arena / live", arena / live.pooled_bytes, "")


def _compared(
    cell: Cell, against: str, rival: list[Run], own: list[Run], equal: bool
) -> Iterator[Row]:
    def row(figure: str, value: float) -> Row:
        return Row(figure, cell[0], cell[1], against, cell[2], value, "ratio", equal)

    def medians(of: Callable[[Run], float]) -> float:
        return _median(rival, of) / _median(own, of)

    yield row("step", medians(lambda r: r.median_ms))
    yield row("paired steps", _paired(rival, own))
    yield row("first step", medians(lambda r: r.ms[0]))
    yield row("peak", medians(lambda r: r.peak_bytes))


def _paired(rival: list[Run], own: list[Run]) -> float:
    """Median ratio of processes of the same round."""
    theirs = {r.round: r.median_ms for r in rival}
    ratios = [theirs[r.round] / r.median_ms for r in own if r.round in theirs]
    return statistics.median(ratios) if ratios else float("nan")


def _tensors(live: Mapping[Cell, Live]) -> Iterator[Row]:
    for (workload, variant, n), own in live.items():
        mib = own.live_bytes / 2**20
        yield Row("tensors", workload, variant, "", n, mib, "MiB")
        stock = live.get((workload, "stock", n))
        if stock and variant != "stock":
            ratio = stock.live_bytes / own.live_bytes
            yield Row("tensors", workload, variant, "stock", n, ratio, "ratio")


def _means(found: list[Row]) -> Iterator[Row]:
    """Geometric means, of complete sets only: others would not compare."""
    steps: dict[tuple[str, str, int], dict[str, Row]] = defaultdict(dict)
    for r in found:
        if r.figure == "step" and r.against:
            steps[r.variant, r.against, r.n_threads][r.workload] = r
    for (variant, against, n), of in steps.items():
        for name, members in ((GEOMEAN, MIXED), (GEOMEAN_WITH_EW, (*MIXED, "EW"))):
            if set(members) <= of.keys():
                value = statistics.geometric_mean(of[m].value for m in members)
                gate = all(of[m].passes_gate for m in members)
                yield Row("step", name, variant, against, n, value, "ratio", gate)


def _micro(samples: list[Micro]) -> Iterator[Row]:
    by_variant: dict[str, list[Micro]] = defaultdict(list)
    for m in samples:
        by_variant[m.variant].append(m)
    for variant, own in by_variant.items():
        yield from _fills(variant, own, by_variant)
        yield from _pairs(variant, own)


def _fills(
    variant: str, own: list[Micro], all_: Mapping[str, list[Micro]]
) -> Iterator[Row]:
    n = own[0].n_threads
    for thread in own[0].fill:

        def median(of: list[Micro], what: str, thread: str = thread) -> float:
            return statistics.median(m.fill[thread][what] for m in of)

        name = f"fill 64 MiB, {thread} thread"
        ms = median(own, "ms")
        yield Row(name, MICRO, variant, "", n, ms, "ms")
        yield Row(
            f"{name}, faults", MICRO, variant, "", n, median(own, "faults"), "each"
        )
        for against in ("stock", *PEERS):
            if against in all_ and _is_compared(variant, against):
                value = median(all_[against], "ms") / ms
                yield Row(name, MICRO, variant, against, n, value, "ratio")


def _pairs(variant: str, own: list[Micro]) -> Iterator[Row]:
    """Allocation and free of untouched blocks: from Python, and in C."""
    n = own[0].n_threads
    for name, pairs in (
        ("torch.empty", [m.empty_ns for m in own]),
        ("pair", [m.pair_ns for m in own if m.pair_ns]),
    ):
        for size in pairs[0] if pairs else ():
            value = statistics.median(p[size] for p in pairs)
            figure = f"{name} of {_units(int(size))}"
            yield Row(figure, MICRO, variant, "", n, value, "ns")


def _units(n_bytes: int) -> str:
    for unit, shift in (("MiB", 20), ("KiB", 10)):
        if n_bytes >> shift:
            return f"{n_bytes >> shift} {unit}"
    return f"{n_bytes} bytes"
