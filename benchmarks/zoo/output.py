"""What the zoo prints: a line a row, tables of groups."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.screen import new_table
from benchmarks.zoo.measuring import SLOWER, Blame, Row
from benchmarks.zoo.model import MODELS

HEADER = ("model", "way", "level", "threads", "stock ms", "our ms", "ratio", "medians")
WIDTHS = (56, 9, 5, 7, 10, 10, 8, 8)
N_TEXTS = 3

ALL = "all"
"""The group that every model is in."""


@dataclass(frozen=True)
class Summary:
    """The models of one group, under the same circumstances."""

    group: str
    way: str
    level: str
    n_threads: int
    n_models: int
    mean: float
    least: float
    slowest: str


def say(screen: Console, text: str) -> None:
    """One line, at once."""
    screen.print(text, highlight=False, markup=False, soft_wrap=True)
    screen.file.flush()


def line(cells: Sequence[str]) -> str:
    """Cells under each other's: texts to the left, numbers to the right."""
    return "  ".join(
        cell.ljust(width) if i < N_TEXTS else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, WIDTHS, strict=True))
    )


def cells(row: Row) -> tuple[str, ...]:
    """What stands in a row's line."""
    times = f"{row.stock_us / 1e3:.3f}", f"{row.our_us / 1e3:.3f}"
    ratios = f"{row.ratio:.3f}x", f"{row.of_medians:.3f}x"
    return (row.model, row.way, row.level, str(row.n_threads), *times, *ratios)


def blamed(found: Blame) -> str:
    """Whose doing it is that a model is slow."""
    if not found.operator:
        return "it uses no operator of ours"
    without = f"without {found.operator} {found.ratio:.3f}x"
    if found.is_found:
        return without
    return f"to blame: none of them (the best is {without}, below {SLOWER})"


def summaries(rows: Sequence[Row]) -> Iterator[Summary]:
    """Of each group and of all, for each way, level and number of threads."""
    groups = list(dict.fromkeys(r.group for r in rows))
    for group in [*groups, ALL] if len(groups) > 1 else groups:
        keys = dict.fromkeys((r.way, r.level, r.n_threads) for r in rows)
        for key in keys:
            part = [
                r
                for r in rows
                if group in (r.group, ALL) and (r.way, r.level, r.n_threads) == key
            ]
            if part:
                mean = math.exp(sum(math.log(r.ratio) for r in part) / len(part))
                least = min(part, key=lambda r: r.ratio)
                yield Summary(group, *key, len(part), mean, least.ratio, least.model)


def table(found: Iterable[Summary]) -> Table:
    """Summaries under each other."""
    numbers = "threads", "models", "geometric mean", "least"
    shown = new_table(("group", "way", "level"), (*numbers, "slowest model"))
    for s in found:
        counts = str(s.n_threads), str(s.n_models)
        shown.add_row(
            *(s.group, s.way, s.level, *counts),
            *(f"{s.mean:.3f}x", f"{s.least:.3f}x", s.slowest),
        )
    return shown


def models(names: Iterable[str]) -> Iterator[str]:
    """Lines that list models by their groups."""
    group = ""
    for name in names:
        model = MODELS[name]
        if model.group != group:
            group = model.group
            yield f"{group}:" + ("" if model.is_installed else " (not installed)")
        yield f"  {name}"
