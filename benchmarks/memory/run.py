"""The command: tables, CSV, JSON, and what falls short of the targets."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import targets
from benchmarks.memory import driver, figures
from benchmarks.memory.figures import GEOMEAN, GEOMEAN_WITH_EW, MICRO
from benchmarks.memory.variants import PLACING, VARIANTS
from benchmarks.screen import new_table, show
from benchmarks.targets import Row, say_verdict
from pai_torchacc.bench.measure import environment
from pai_torchacc.bench.run import console, read_targets, write_csv
from pai_torchacc.bench.workloads import WORKLOADS
from pai_torchacc.commands.usage import UsageError, check_outputs

QUICK_PROCESSES, QUICK_STEPS = 2, 12

COLUMNS = (
    ("step", "", "step ms", "{:.2f}"),
    ("step", "stock", "ratio", "{:.2f}x"),
    ("paired steps", "stock", "paired", "{:.2f}x"),
    ("spread of steps", "", "spread", "{:.1f}%"),
    ("first step", "", "first ms", "{:.1f}"),
    ("faults", "", "faults", "{:.1f}"),
    ("tensors", "", "tensors MiB", "{:.1f}"),
    ("peak", "", "peak MiB", "{:.0f}"),
    ("RSS / live", "", "RSS/live", "{:.2f}"),
    ("arena / live", "", "arena/live", "{:.3f}"),
)
"""Of the table of workloads: figure, against, heading, format."""


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    plan = plan_of(options)
    check_outputs([options.csv])
    wanted = read_targets("memory_target") if options.check else []
    with Progress(console=screen) as progress:
        task = progress.add_task("", total=1.0)

        def tell(what: str, share: float) -> None:
            progress.update(task, completed=share, description=what)

        measured = driver.measure(plan, tell)
    rows = figures.rows(measured)
    _show(screen, rows)
    if options.csv and rows:
        write_csv(Path(options.csv), rows, surroundings(plan))
    unequal = [r for r in rows if not r.passes_gate]
    verdict = targets.judge(rows, wanted, ours="pool")
    more = (
        *(f"missing: {name}: {why}" for name, why in measured.missing.items()),
        *(f"failed: {what}" for what in measured.failed),
    )
    say_verdict(screen, verdict, more, options.check)
    document = {
        "environment": environment() | surroundings(plan),
        "missing": measured.missing,
        "failed": measured.failed,
        "rows": [asdict(r) for r in rows],
        "runs": [asdict(r) for r in measured.runs],
        "live": [
            {"workload": w, "variant": v, "n_threads": n} | asdict(live)
            for (w, v, n), live in measured.live.items()
        ],
        "micro": [asdict(m) for m in measured.micro],
    }
    return document, 1 if verdict.missed or unequal or measured.failed else 0


def plan_of(options: argparse.Namespace) -> driver.Plan:
    """What the options ask for; raises UsageError where that is unknown."""
    workloads = _known(options.workloads, (*WORKLOADS, MICRO), "workload")
    variants = _known(options.variants, tuple(VARIANTS), "variant") or PLACING
    n_threads = [n for n in (1, 2) if n <= len(os.sched_getaffinity(0))]
    quick = options.quick
    return driver.Plan(
        workloads or (*driver.STEPS, MICRO),
        tuple(dict.fromkeys(("stock", *variants))),
        tuple(options.threads or (n_threads[:1] if quick else n_threads)),
        options.processes or (QUICK_PROCESSES if quick else 5),
        options.steps or (QUICK_STEPS if quick else None),
        tuple(shlex.split(options.prefix)),
    )


def _known(
    names: list[str] | None, known: tuple[str, ...], what: str
) -> tuple[str, ...]:
    wrong = sorted(set(names or ()).difference(known))
    if wrong:
        raise UsageError(f"no {what} is called {', '.join(wrong)}: {', '.join(known)}")
    return tuple(dict.fromkeys(names or ()))


def surroundings(plan: driver.Plan) -> dict[str, str]:
    """What figures of memory depend on besides CPU and versions."""
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {
        "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(),
        "huge pages": huge.read_text().strip() if huge.exists() else "?",
        "processes": str(plan.processes),
    }


def _show(screen: Console, rows: list[Row]) -> None:
    tables = (
        ("workloads", _workloads(rows)),
        ("geometric means", _geomeans(rows)),
        ("the allocator alone", _micro(rows)),
    )
    show(screen, tables)


def _workloads(rows: list[Row]) -> Table:
    told = {(r.figure, r.against) for r in rows if r.variant != "stock"}
    columns = [c for c in COLUMNS if c[:2] in told]
    headings = [c[2] for c in columns]
    table = new_table(("workload", "variant"), ("threads", *headings, "numbers"))
    at = {(r.workload, r.n_threads, r.variant, r.figure, r.against): r for r in rows}
    cells = {k[:3]: None for k in at if k[3:] == ("step", "")}
    order = list(VARIANTS)
    for workload, n, variant in sorted(
        cells, key=lambda c: (c[1], c[0], order.index(c[2]))
    ):
        found = [at.get((workload, n, variant, f, a)) for f, a, *_ in columns]
        texts = [
            shape.format(r.value) if r else ""
            for r, (*_, shape) in zip(found, columns, strict=True)
        ]
        equal = all(r.passes_gate for r in found if r)
        table.add_row(
            workload, variant, str(n), *texts, "equal" if equal else "DIFFERENT!"
        )
    return table


def _geomeans(rows: list[Row]) -> Table:
    table = new_table(("mean", "variant", "against"), ("threads", "ratio"))
    for r in rows:
        if r.workload in (GEOMEAN, GEOMEAN_WITH_EW):
            table.add_row(
                r.workload, r.variant, r.against, str(r.n_threads), f"{r.value:.3f}x"
            )
    return table


def _micro(rows: list[Row]) -> Table:
    of = [r for r in rows if r.workload == MICRO and r.against in ("", "stock")]
    variants = [v for v in VARIANTS if any(r.variant == v for r in of)]
    table = new_table(("figure", "unit"), variants)
    at = {(r.figure, r.unit, r.variant): f"{r.value:.2f}" for r in of}
    for figure, unit in dict.fromkeys((r.figure, r.unit) for r in of):
        values = [at.get((figure, unit, v), "") for v in variants]
        table.add_row(figure, unit, *values)
    return table
