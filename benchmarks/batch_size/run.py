"""The command: what was found beside all sizes of a fine grid, measured in turn.

The grid goes by the root of two from 2 to twice the largest size that was tried, with
the chosen size and the fastest one that was tried. Its sizes run in child processes as
trials do, in turn, and count by their best of several turns. ``throughput`` is that of
the fastest size that ``find_batch_size`` tried, divided by that of the best of the
grid, both from the grid's measurements. ``chosen`` is the same of the chosen size.
``memory error`` is the largest share by which the line is wrong at sizes of the grid
that are not among its three, from the smallest of these on; once of what is needed, and
once with what is below 40 MiB counted as 40: allocators leave some MiB unused, whatever
the size. ``search`` is how long
the search took, ``disturbed`` how many sizes of the grid were measured only while
threads waited for CPUs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress

import pai_torchacc as ptac
from benchmarks import targets
from benchmarks.batch_size.cases import MODELS
from benchmarks.screen import new_table, show
from pai_torchacc.batch_size import limits, process
from pai_torchacc.batch_size.result import BatchSize, Trial
from pai_torchacc.batch_size.search import merged, trial_of
from pai_torchacc.batch_size.trial import Task
from pai_torchacc.bench.measure import environment
from pai_torchacc.bench.run import console, write_csv
from pai_torchacc.commands.usage import UsageError, check_outputs

TIMEOUT_S = 300.0

LEAST_BYTES = 40 << 20


@dataclass(frozen=True)
class Measured:
    """A case: what was found, and every size of the grid."""

    name: str
    variant: str
    found: BatchSize
    search_s: float
    grid: dict[int, Trial]

    def rows(self) -> Iterator[targets.Row]:
        """The figures."""
        rates = {n: t.throughput for n, t in self.grid.items() if not t.trouble}
        best = max(rates.values())
        tried = max(rates[t.batch] for t in self.found.trials if t.batch in rates)
        yield self._row("throughput", tried / best, "ratio")
        yield self._row("chosen", rates[self.found.batch] / best, "ratio")
        yield self._row("batch", self.found.batch, "samples")
        yield self._row("best batch", max(rates, key=lambda n: rates[n]), "samples")
        yield self._row("search", self.search_s, "s")
        n_disturbed = sum(not t.is_quiet for t in self.grid.values())
        yield self._row("disturbed", n_disturbed, "sizes")
        line = self.found.memory
        if line:
            needs = {
                n: t.need_bytes
                for n, t in self.grid.items()
                if not t.trouble and n > line.sizes[0] and n not in line.sizes
            }
            for figure, least in (
                ("memory error", 1),
                ("memory error, from 40 MiB", LEAST_BYTES),
            ):
                errors = [
                    abs(line.predict(n) - need) / max(need, least)
                    for n, need in needs.items()
                ]
                yield self._row(figure, 100 * max(errors), "%")

    def _row(self, figure: str, value: float, unit: str) -> targets.Row:
        n_threads = torch.get_num_threads()
        return targets.Row(
            figure, self.name, self.variant, "grid", n_threads, value, unit
        )


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    check_outputs([options.csv, options.plot])
    names = options.models or list(MODELS)
    if unknown := [name for name in names if name not in MODELS]:
        raise UsageError(f"no model is {unknown[0]}: {', '.join(MODELS)}")
    seconds, turns = (0.1, 2) if options.quick else (0.5, 3)
    todo = [
        (name, trains, is_on)
        for name in names
        for trains in (True, False)
        for is_on in ((True,) if options.quick else (True, False))
    ]
    measured = []
    with Progress(console=screen) as progress:
        for case in progress.track(todo, description="cases"):
            measured.append(_measure(*case, seconds, turns))
    rows = [row for m in measured for row in m.rows()]
    table = new_table(("model", "variant", "figure"), ("value", "unit"))
    for r in rows:
        table.add_row(r.workload, r.variant, r.figure, f"{r.value:.3f}", r.unit)
    show(screen, [("find_batch_size beside every size of a grid", table)])
    if options.csv:
        write_csv(Path(options.csv), rows)
    if options.plot:
        _plot(measured, Path(options.plot))
    return {"environment": environment(), "rows": [asdict(r) for r in rows]}, 0


def _measure(
    name: str, trains: bool, is_on: bool, seconds: float, turns: int
) -> Measured:
    model = MODELS[name]
    step = model.step(trains)
    if is_on:
        ptac.enable(strict=True)
    try:
        step(model.make_batch(8))
        start = time.perf_counter()
        found = ptac.find_batch_size(step, model.make_batch, seconds=seconds)
        search_s = time.perf_counter() - start
        grid: dict[int, Trial] = {}
        for _ in range(turns):
            for n in _sizes(found):
                trial = _trial(Task(step, model.make_batch, n, seconds, 0.9, _most()))
                grid[n] = merged(grid[n], trial) if n in grid else trial
    finally:
        ptac.disable()
    variant = "accelerated" if is_on else "stock"
    return Measured(
        f"{name}, {'training' if trains else 'inference'}",
        variant,
        found,
        search_s,
        grid,
    )


def _sizes(found: BatchSize) -> list[int]:
    largest = 2 * max(t.batch for t in found.trials)
    powers = {round(2 ** (i / 2)) for i in range(2, 64)}
    best = max(found.trials, key=lambda t: t.throughput)
    return sorted({*(n for n in powers if n <= largest), found.batch, best.batch})


def _most() -> int:
    return int(0.9 * (limits.held() + limits.available()))


def _trial(task: Task) -> Trial:
    outcome = process.run(task, TIMEOUT_S)
    if outcome.error is not None:
        raise outcome.error
    return trial_of(outcome)


def _plot(measured: list[Measured], path: Path) -> None:
    from matplotlib.figure import Figure

    n = len(measured)
    figure = Figure(figsize=(9, 2.4 * ((n + 1) // 2)), layout="constrained")
    grid = figure.subplots((n + 1) // 2, 2, squeeze=False).flat
    for axes, m in zip(grid, measured, strict=False):
        fitting = [t for t in m.grid.values() if not t.trouble]
        axes.plot([t.batch for t in fitting], [t.throughput for t in fitting], ".-")
        axes.axvline(m.found.batch, color="tab:green", linestyle=":")
        axes.set(xscale="log", ylim=(0, None), title=f"{m.name}, {m.variant}")
        axes.set(xlabel="batch", ylabel="samples a second")
    figure.savefig(path, dpi=110)
