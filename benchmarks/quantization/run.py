"""The command: tables, CSV, JSON, plot, and what falls short of the targets."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import targets
from benchmarks.quantization import figures, variants, whole
from benchmarks.quantization.cases import CASES, CONVOLUTION, LINEAR, MODEL
from benchmarks.quantization.figures import (
    AGREEMENT,
    BEST_PEER,
    SNR,
    SPEED,
    STOCK,
    Failure,
    Row,
    Setting,
)
from benchmarks.quantization.variants import OURS
from benchmarks.screen import by_threads, new_table, show
from pai_torchacc.bench.measure import (
    environment,
    raise_malloc_thresholds,
    thread_counts,
)
from pai_torchacc.bench.run import console, plot, read_targets, write_csv
from pai_torchacc.commands.usage import check_outputs

TRAINED, BYTES = "trained", "bytes"
PARTS = (LINEAR, CONVOLUTION, MODEL, TRAINED, BYTES)

Job = Callable[[Setting], Iterator[Row]]


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    check_outputs([options.csv, options.plot])
    wanted = read_targets("quantization_target") if options.check else None
    variants.check(options.method)
    raise_malloc_thresholds()
    rows, failed = _measure_all(screen, options)
    rows += list(figures.means(rows, CASES))
    _show(screen, rows)
    peers = variants.versions() if options.peers else {}
    _write(options, rows, peers)
    verdict = targets.conclude(screen, rows, wanted, OURS, peers, failed)
    document = {
        "environment": environment(),
        "peers": peers,
        "failed": [asdict(failure) for failure in failed],
        "rows": [asdict(row) for row in rows],
    }
    is_wrong = any(r.variant == OURS and not r.passes_gate for r in rows)
    is_wrong |= any(failure.variant == OURS for failure in failed)
    return document, 1 if verdict.missed or is_wrong else 0


def _measure_all(
    screen: Console, options: argparse.Namespace
) -> tuple[list[Row], list[Failure]]:
    jobs = dict(_jobs(options.parts or PARTS, options.quick))
    rows: list[Row] = []
    failed: list[Failure] = []
    threads = options.threads or thread_counts()
    for n, name in by_threads(screen, threads, list(jobs)):
        setting = Setting(
            n,
            blocks=6 if options.quick else 20,
            block_s=0.005 if options.quick else 0.02,
            method=options.method,
            peers=variants.installed() if options.peers else (),
            failed=failed,
        )
        try:
            rows += jobs[name](setting)
        except Exception as error:
            setting.fail(name, OURS, error)
    return rows, failed


def _jobs(parts: Sequence[str], is_quick: bool) -> Iterator[tuple[str, Job]]:
    for case in CASES:
        if case.part in parts and (case.is_quick or not is_quick):
            yield case.name, partial(figures.measure, case)
    if TRAINED in parts:
        yield "training on digits", whole.trained
    if BYTES in parts:
        yield "checkpoints", whole.sizes


def _write(
    options: argparse.Namespace, rows: list[Row], peers: dict[str, str | None]
) -> None:
    if options.csv and rows:
        versions = {k: v or "not installed" for k, v in peers.items()}
        write_csv(Path(options.csv), rows, versions)
    if options.plot:
        ratios = {
            f"{r.workload} ({r.n_threads})": r.value
            for r in rows
            if (r.figure, r.variant, r.against) == (SPEED, OURS, STOCK)
        }
        plot(ratios, Path(options.plot))


def _show(screen: Console, rows: list[Row]) -> None:
    cases = {case.name for case in CASES}
    means = {mean for case in CASES for mean in case.means}
    tables = (
        ("float32 and quantized", _cases(rows)),
        ("others: times as fast as float32, and SQNR", _peers(rows)),
        ("means", _figures([r for r in rows if r.workload in means])),
        ("models", _figures([r for r in rows if r.workload not in cases | means])),
    )
    show(screen, tables)


def _by_cell(rows: list[Row]) -> dict[tuple[str, int], dict[tuple[str, ...], Row]]:
    """Rows of cases by workload and threads, then by figure, variant and against."""
    cells: dict[tuple[str, int], dict[tuple[str, ...], Row]] = defaultdict(dict)
    names = {case.name for case in CASES}
    for r in rows:
        if r.workload in names:
            cells[r.workload, r.n_threads][r.figure, r.variant, r.against] = r
    return cells


def _cases(rows: list[Row]) -> Table:
    table = new_table(
        ("case",),
        (
            *("threads", "stock ms", "ptac ms", "Gop/s", "faster", "of medians"),
            *("SQNR", "same", "than best peer", "numbers"),
        ),
    )
    for (name, n), at in _by_cell(rows).items():
        speed = at[SPEED, OURS, STOCK]
        near = at[SNR, OURS, ""]
        same = at.get((AGREEMENT, OURS, ""))
        beside = at.get((SPEED, OURS, BEST_PEER))
        table.add_row(
            name,
            str(n),
            f"{speed.rival_ms:.4f}",
            f"{speed.ms:.4f}",
            f"{speed.gops:.0f}" if speed.gops else "",
            f"{speed.value:.2f}x",
            f"{speed.of_medians:.2f}x ({speed.low:.2f} to {speed.high:.2f})",
            f"{near.value:.1f} dB",
            f"{same.value:.0f} %" if same else "",
            f"{beside.value:.2f}x" if beside else "",
            "" if speed.passes_gate else "WRONG!",
        )
    return table


def _peers(rows: list[Row]) -> Table:
    found = {r.variant for r in rows if r.variant != OURS}
    names = [peer.name for peer in variants.PEERS if peer.name in found]
    table = new_table(("case",), ("threads", *names))
    if not names:
        return table
    for (name, n), at in _by_cell(rows).items():
        texts = []
        for peer in names:
            speed, near = at.get((SPEED, peer, STOCK)), at.get((SNR, peer, ""))
            texts.append(f"{speed.value:.2f}x {near.value:.0f}" if speed else "")
        table.add_row(name, str(n), *texts)
    return table


def _figures(rows: list[Row]) -> Table:
    table = new_table(
        ("of", "figure", "variant", "against"), ("threads", "value", "of medians")
    )
    for r in rows:
        table.add_row(
            r.workload,
            r.figure,
            r.variant,
            r.against,
            str(r.n_threads),
            f"{r.value:.2f}{'x' if r.unit == 'ratio' else ' ' + r.unit}"
            + ("" if r.passes_gate else " WRONG!"),
            f"{r.of_medians:.2f}x" if r.of_medians else "",
        )
    return table
