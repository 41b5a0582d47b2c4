"""The command: tables, CSV, JSON, plot, and what falls short of the targets."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import targets
from benchmarks.learning_rate import adam, figures, methods, overhead, plot
from benchmarks.learning_rate.figures import (
    BEST_OF_NINE,
    NINE_RATES,
    Bench,
    Outcomes,
    Row,
)
from benchmarks.learning_rate.methods import METHODS, OURS, STOCK, Method
from benchmarks.learning_rate.problems import PROBLEMS, RATES, Case, cases
from benchmarks.learning_rate.training import Budget
from benchmarks.screen import new_table, show, threads_kept
from pai_torchacc.bench.measure import environment, raise_malloc_thresholds
from pai_torchacc.bench.run import console, read_targets, write_csv
from pai_torchacc.commands.usage import UsageError, check_outputs


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    check_outputs([options.csv, options.plot])
    wanted = read_targets("learning_rate_target") if options.check else None
    chosen = methods.chosen(options.methods)
    peers = methods.versions(chosen)
    budget = _budget(options)
    if options.plot:
        plot.check()
    chosen = [m for m in chosen if not m.package or peers[m.package]]
    with threads_kept():
        torch.set_num_threads(1)  # small layers are no faster with more
        rows, failed = _measure(screen, options, chosen, budget)
        if options.plot:
            plot.draw(Path(options.plot), options.seeds[0], budget)
    _show(screen, rows)
    if options.csv and rows:
        versions = {k: v or "not installed" for k, v in peers.items()}
        write_csv(Path(options.csv), rows, versions, decimals=6)
    verdict = targets.conclude(screen, rows, wanted, OURS, peers, failed)
    document = {
        "environment": environment(),
        "peers": peers,
        "failed": failed,
        "rows": [{k: _plain(v) for k, v in asdict(row).items()} for row in rows],
    }
    return document, 1 if verdict.missed or failed else 0


def _plain(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _budget(options: argparse.Namespace) -> Budget:
    if not 0 < options.scale < math.inf:
        raise UsageError(f"--scale is above 0, not {options.scale:g}")
    for name in ("label_smoothing", "label_noise"):
        if not 0 <= (value := getattr(options, name)) < 1:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} is from 0 to below 1, not {value:g}")
    for name in _problems(options):
        if (n := len(PROBLEMS[name].data().x)) < options.batch:
            raise UsageError(f"--batch: {name} has only {n} samples for training")
    return Budget(
        options.batch, options.scale, options.label_smoothing, options.label_noise
    )


def _problems(options: argparse.Namespace) -> tuple[str, ...]:
    for name in options.problems or ():
        if name not in PROBLEMS:
            raise UsageError(f"no problem is {name}: {', '.join(PROBLEMS)}")
    return tuple(dict.fromkeys(options.problems or PROBLEMS))


def _measure(
    screen: Console,
    options: argparse.Namespace,
    chosen: list[Method],
    budget: Budget,
) -> tuple[list[Row], list[str]]:
    rows: list[Row] = []
    failed: list[str] = []
    with Progress(console=screen) as progress:
        task = progress.add_task("trainings", total=None)
        bench = Bench(budget, after=lambda: progress.advance(task))
        if options.overhead:
            raise_malloc_thresholds()
            rows += overhead.measure()
        if options.adam:
            total = adam.N_TRAININGS * len(options.seeds)
            progress.update(task, total=total)
            rows += adam.measure(bench, options.seeds)
        if not (options.overhead or options.adam):
            todo = cases(_problems(options))
            total = _count(chosen, todo) * len(options.seeds)
            progress.update(task, total=total)
            rows += _suite(bench, chosen, todo, options.seeds, failed)
    return rows, failed


def _count(chosen: list[Method], todo: list[Case]) -> int:
    """Trainings of each seed: those of all methods, and of stock with nine rates."""
    others = {(m.name, m.key(case)) for m in chosen for case in todo if m.name != STOCK}
    return len(others) + len(todo) // len(RATES) * len(NINE_RATES)


def _suite(
    bench: Bench,
    chosen: list[Method],
    todo: list[Case],
    seeds: Sequence[int],
    failed: list[str],
) -> Iterator[Row]:
    found: Outcomes = {}
    for case in todo:
        for seed in seeds:
            found[STOCK, case, seed] = bench.outcome(METHODS[STOCK], case, seed)
            found[BEST_OF_NINE, case, seed] = bench.best_of_nine(case, seed)
    for method in chosen:
        try:
            for case in todo:
                for seed in seeds:
                    found[method.name, case, seed] = bench.outcome(method, case, seed)
        except UsageError:
            raise
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            failed.append(f"{case}, {method.name}: {type(error).__name__}: {text}")
            continue
        yield from figures.of_all(found, method.name, todo, seeds)
        yield from figures.of_cases(found, method.name, todo, seeds)
    yield from figures.of_all(found, BEST_OF_NINE, todo, seeds)


def _show(screen: Console, rows: list[Row]) -> None:
    lines = [r for r in rows if not math.isnan(r.loss)]
    tables = (
        ("final losses, and each method's divided by stock's", _losses(lines)),
        ("figures", _figures([r for r in rows if math.isnan(r.loss)])),
    )
    show(screen, tables)


def _losses(lines: list[Row]) -> Table:
    """Ratios by case and method; of ours also the losses."""
    names = list(dict.fromkeys(r.variant for r in lines))
    shown = OURS if OURS in names else next(iter(names), "")
    columns = ("stock's loss", f"{shown}'s", *names)
    table = new_table(("case",), columns)
    at = {(r.workload, r.variant): r for r in lines}
    for workload in dict.fromkeys(r.workload for r in lines):
        first = at[workload, shown]
        ratios = [at[workload, name] for name in names]
        table.add_row(
            workload,
            f"{first.stock_loss:.3g}",
            f"{first.loss:.3g}",
            *(f"{r.value:.3f}" for r in ratios),
        )
    return table


def _figures(rows: list[Row]) -> Table:
    """A row for a figure, a column for a method."""
    names = list(dict.fromkeys(r.variant for r in rows))
    table = new_table(("of", "figure"), names)
    at = {(r.workload, r.figure, r.variant): r for r in rows}
    for workload, figure in dict.fromkeys((r.workload, r.figure) for r in rows):
        found = [at.get((workload, figure, name)) for name in names]
        table.add_row(workload, figure, *(_value(r) if r else "" for r in found))
    return table


def _value(r: Row) -> str:
    if r.unit == "ratio":
        return f"{r.value:.3f}"
    return f"{r.value:+.2f}" if r.unit else f"{r.value:g}"
