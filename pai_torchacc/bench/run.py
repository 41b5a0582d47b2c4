"""``python -m pai_torchacc bench``: figures, as a table, CSV, JSON and plot."""

from __future__ import annotations

import argparse
import csv
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pai_torchacc.bench import level_fast
from pai_torchacc.bench.beside import FORWARDED
from pai_torchacc.bench.figures import FIGURES, Result, Setting
from pai_torchacc.bench.measure import (
    environment,
    raise_malloc_thresholds,
    thread_counts,
)
from pai_torchacc.bench.progress import Steps
from pai_torchacc.bench.tables import header
from pai_torchacc.commands.usage import UsageError, check_outputs

LONG = ("W4", "W5", "ResNet18@224", "VGG", "UN", level_fast.LOSS.split(",")[0])
"""Workloads that --quick leaves out."""

TARGETS = Path("benchmarks") / "targets.toml"

BESIDE = ("memory", "conv", "quantization", "lr", *FORWARDED)
"""What the repository's ``benchmarks`` measures."""


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    names = _chosen(options.names, options.quick)
    check_outputs([options.csv, options.plot])
    targets = read_targets("target") if options.check else []
    raise_malloc_thresholds()
    threads = options.threads or thread_counts()
    results: list[Result] = []
    _print_row(screen, HEADER)
    with Steps(len(names) * len(threads), screen) as steps:
        for n in threads:
            for name in names:
                steps.begin(f"{n} thread(s): {name}")
                for result in _measure(name, n, options):
                    results.append(result)
                    _print_row(screen, _cells(result))
                    if options.csv:
                        write_csv(Path(options.csv), results)
                steps.end()
    if options.plot:
        rows = [r for r in results if r.unit == "ratio" and r.rival == "stock"]
        ratios = {f"{r.figure} ({r.n_threads})": r.value for r in rows}
        plot(ratios, Path(options.plot))
    short = list(_missed(results, targets))
    for line in short:
        screen.print(line, highlight=False, soft_wrap=True)
    if options.check:
        screen.print(f"{len(short)} targets missed")
    document = {"environment": environment(), "results": [asdict(r) for r in results]}
    return document, 1 if short else 0


def console() -> Console:
    """As wide as the table needs, where no terminal sets a limit."""
    found = Console()
    return found if found.is_terminal else Console(width=160)


def _chosen(parts: list[str], quick: bool) -> list[str]:
    names = [n for n in FIGURES if not parts or any(p in n for p in parts)]
    if parts and not names:
        beside = f" (or python -m benchmarks {parts[0]})" if parts[0] in BESIDE else ""
        raise UsageError(
            f"no figure is named like {', '.join(parts)}{beside}: {'; '.join(FIGURES)}"
        )
    if quick and not parts:
        names = [n for n in names if n.split(",")[0] not in LONG and "W4" not in n]
    return names


def _measure(
    name: str, n_threads: int, options: argparse.Namespace
) -> Iterator[Result]:
    setting = Setting(
        n_threads,
        blocks=8 if options.quick else 20,
        block_s=0.01 if options.quick else 0.05,
        against_compile=options.against == "compile",
    )
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    try:
        yield from FIGURES[name](setting)
    finally:
        torch.set_num_threads(before)


HEADER = ("figure", "against", "threads", "their us", "our us", "ratio", "of medians")
WIDTHS = (50, 12, 7, 9, 9, 15, 10)


def _print_row(screen: Console, cells: Sequence[str]) -> None:
    """One line of the table: what has been measured stands there at once."""
    n_left = 2
    line = "  ".join(
        cell.ljust(width) if i < n_left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    )
    screen.print(line, highlight=False, markup=False, soft_wrap=True)
    screen.file.flush()


def _cells(r: Result) -> tuple[str, ...]:
    return (
        r.figure,
        r.rival,
        str(r.n_threads),
        f"{r.rival_us:.1f}" if r.rival_us else "",
        f"{r.our_us:.1f}" if r.our_us else "",
        _value(r) + ("" if r.passes_gate else " NUMBERS!"),
        f"{r.rival_median_us / r.our_median_us:.2f}x" if r.our_median_us else "",
    )


def _value(r: Result) -> str:
    return f"{r.value:.2f}x" if r.unit == "ratio" else f"{r.value:.2f} {r.unit}"


def write_csv(
    path: Path,
    results: Sequence[Any],
    more: Mapping[str, str] | None = None,
    decimals: int = 3,
) -> None:
    """Write dataclasses as rows, with what they depend on in the header."""
    with path.open("w", newline="", encoding="utf-8") as file:
        facts = environment() | dict(more or {})
        file.write(header(facts, Path(sys.argv[0]).parent.name))
        writer = csv.DictWriter(file, list(asdict(results[0])), lineterminator="\n")
        writer.writeheader()
        for r in results:
            row = {
                k: round(v, decimals) if isinstance(v, float) else v
                for k, v in asdict(r).items()
            }
            writer.writerow(row)


def read_targets(table: str) -> list[dict[str, Any]]:
    """One table of the targets; raises UsageError outside the repository."""
    if not TARGETS.is_file():
        raise UsageError(f"{TARGETS} is not here: --check runs in the repository")
    return tomllib.loads(TARGETS.read_text(encoding="utf-8"))[table]


def _missed(results: list[Result], targets: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for results that fall short of their targets."""
    for r in results:
        for target in targets:
            if (target["figure"], target["against"]) != (r.figure, r.rival):
                continue
            if target.get("threads", r.n_threads) != r.n_threads:
                continue
            bound = target["value"]
            met = r.value >= bound if r.unit == "ratio" else r.value <= bound
            if not met or not r.passes_gate:
                sign = ">=" if r.unit == "ratio" else "<="
                yield (
                    f"missed: {r.figure}, {r.n_threads} thread(s), against {r.rival}: "
                    f"{_value(r)}, target {sign} {bound}"
                    + ("" if r.passes_gate else "; numbers outside the contract")
                )


def plot(ratios: Mapping[str, float], path: Path) -> None:
    """Draw ratios of stock's time to ours as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(
        figsize=(9, 1 + 0.25 * len(ratios)), layout="constrained"
    )
    bars = axes.barh(list(ratios), list(ratios.values()))
    axes.bar_label(bars, fmt="%.2f")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set(xlabel="stock time / ptac time (threads in brackets)", xscale="log")
    axes.invert_yaxis()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
