"""Measuring the zoo: rows, groups, and which models are slower than stock."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import pai_torchacc as ptac
from benchmarks.screen import threads_kept
from benchmarks.zoo import choice, output
from benchmarks.zoo.measuring import (
    ATTEMPTS,
    SLOWER,
    Blame,
    FailedError,
    Row,
    Setting,
    blame,
    settled,
)
from benchmarks.zoo.model import MODELS
from pai_torchacc.bench.measure import environment, raise_malloc_thresholds
from pai_torchacc.bench.progress import Steps
from pai_torchacc.bench.run import console, plot, write_csv
from pai_torchacc.commands.usage import UsageError, check_outputs

FULL, QUICK = (20, 0.05), (8, 0.02)
"""How many blocks at most, and the seconds of each."""


@dataclass
class Found:
    """What has been measured, and what could not be."""

    rows: list[Row] = field(default_factory=list)
    slow: list[tuple[Setting, Row, Blame | None]] = field(default_factory=list)
    skipped: list[tuple[Setting, str]] = field(default_factory=list)
    failed: list[tuple[Setting, str]] = field(default_factory=list)

    def measure(self, setting: Setting) -> str:
        """Add a model; the line that tells of it."""
        row = None
        try:
            row = settled(setting)
            self.rows.append(row)
            if row.ratio < SLOWER:
                self.slow.append((setting, row, None))
                self.slow[-1] = setting, row, blame(setting)
        except FailedError as error:
            where = self.skipped if error.in_stock else self.failed
            where.append((setting, str(error)))
            if row is None:
                word = "skipped" if error.in_stock else "failed"
                return f"{word}: {setting}: {error}"
        return output.line(output.cells(row)) if row else ""

    def verdict(self) -> list[str]:
        """Lines about what was not measured, and about what is slow."""
        lines = [f"skipped, fails in stock: {s}: {why}" for s, why in self.skipped]
        lines += [f"failed with us only: {s}: {why}" for s, why in self.failed]
        for setting, row, found in self.slow:
            text = f"slower than stock: {setting}: {row.ratio:.3f}x"
            lines.append(text + (f"; {output.blamed(found)}" if found else ""))
        return lines

    def document(self) -> dict[str, Any]:
        """All of it, for --json."""

        def told(failures: list[tuple[Setting, str]]) -> list[dict[str, Any]]:
            return [_circumstances(s) | {"error": why} for s, why in failures]

        return {
            "environment": environment(),
            "results": [asdict(r) for r in self.rows],
            "groups": [asdict(s) for s in output.summaries(self.rows)],
            "slow": [
                asdict(row) | {"without": asdict(found) if found else None}
                for _, row, found in self.slow
            ],
            "skipped": told(self.skipped),
            "failed": told(self.failed),
        }


def _circumstances(setting: Setting) -> dict[str, Any]:
    names = ("model", "group", "way", "level", "n_threads")
    return {name: getattr(setting, name) for name in names}


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; with --check the status tells of slow models."""
    screen = console()
    if options.list:
        return _list(screen, options.names)
    names, missing = choice.chosen(options.names, options.all)
    check_outputs([options.csv, options.plot])
    _check_acceleration(options.levels)
    raise_malloc_thresholds()
    if missing:
        output.say(screen, choice.not_installed(missing))
    found = Found()
    _measure(screen, names, options, found)
    if found.rows:
        screen.print(output.table(output.summaries(found.rows)))
    for text in found.verdict():
        output.say(screen, text)
    if options.check:
        output.say(
            screen,
            f"{len(found.slow)} of {len(found.rows)} rows below {SLOWER} in "
            f"{ATTEMPTS} attempts, {len(found.failed)} failed with us only",
        )
    if options.plot and found.rows:
        plot({_label(r): r.ratio for r in found.rows}, Path(options.plot))
    is_bad = bool(found.slow or found.failed)
    return found.document(), 1 if options.check and is_bad else 0


def _list(screen: Console, parts: list[str]) -> tuple[Any, int]:
    names = choice.named(parts, takes_all=True)
    for text in output.models(names):
        output.say(screen, text)
    models = [
        {"model": n, "group": MODELS[n].group, "is_installed": MODELS[n].is_installed}
        for n in names
    ]
    return {"models": models}, 0


def _check_acceleration(levels: list[str]) -> None:
    """Raise UsageError where there is nothing to measure beside stock."""
    for level in levels:
        handle = ptac.enable(numerics=level)
        reason = None if handle else handle.reason
        ptac.disable()
        if reason:
            raise UsageError(f"nothing is accelerated here: {reason}")


def _measure(
    screen: Console, names: list[str], options: argparse.Namespace, found: Found
) -> None:
    """Print each row when it is there, and keep the CSV up to date."""
    threads = options.threads or [1]
    todo = list(product(threads, names, options.ways, options.levels))
    lengths = QUICK if options.quick else FULL
    output.say(screen, output.line(output.HEADER))
    with threads_kept(), Steps(len(todo), screen) as steps:
        for n_threads, name, way, level in todo:
            setting = Setting(name, way, level, n_threads, *lengths)
            steps.begin(str(setting))
            torch.set_num_threads(n_threads)
            output.say(screen, found.measure(setting))
            if options.csv and found.rows:
                write_csv(Path(options.csv), found.rows)
            steps.end()


def _label(row: Row) -> str:
    return f"{row.model}, {row.way}, {row.level} ({row.n_threads})"
