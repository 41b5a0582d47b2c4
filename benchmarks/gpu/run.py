"""``python -m benchmarks gpu --budget SECONDS``: everything a device can tell us.

Parts come in an order in which a run that is cut has the most to say. Each has a share
of the time that is left, and what it does not need goes to those that follow.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch

import pai_torchacc as ptac
from benchmarks.gpu import (
    ceilings,
    epilogues,
    first_step,
    graphs,
    launches,
    models,
    operators,
    optimizers,
    quantized,
)
from benchmarks.gpu.rows import Row, Writer
from benchmarks.gpu.timing import Budget, Setting
from pai_torchacc.bench import measure_cuda
from pai_torchacc.commands.usage import UsageError, check_outputs

PARTS: dict[str, tuple[float, Callable[[Setting], Iterator[Row]]]] = {
    "ceilings": (0.1, ceilings.rows),
    "epilogues": (0.1, lambda _: epilogues.rows()),
    "launches": (0.1, lambda _: launches.rows()),
    "graphs": (0.1, graphs.rows),
    "operators": (0.4, operators.rows),
    "quantized": (0.15, quantized.rows),
    "optimizers": (0.25, optimizers.rows),
    "models": (0.5, models.rows),
    "first-step": (0.6, lambda _: first_step.rows()),
    "compiled": (1.0, lambda s: chain(operators.compiled(s), models.compiled(s))),
}
"""With the share of the time that is left when a part begins."""


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure; the document, and 1 where a case failed."""
    check_outputs([options.csv])
    if not torch.cuda.is_available():
        raise UsageError(f"no CUDA device: {_why()}")
    missing = measure_cuda.provide()
    for unit, why in missing.items():
        print(f"no machine code for {unit}: {why}", flush=True)
    writer = Writer(options.csv, options.json, _show)
    setting = Setting(Budget(options.budget))
    if measure_cuda.is_emulated():
        setting = replace(setting, blocks=1, block_s=0.0)
    try:
        for name in options.parts or PARTS:
            setting = _measure(name, setting, writer)
    finally:
        ptac.disable()
    failed = [r.case for r in writer.rows if "failed: " in r.note]
    print(f"{len(writer.rows)} rows, {len(failed)} failed")
    return writer.document(), 1 if failed else 0


def _measure(name: str, setting: Setting, writer: Writer) -> Setting:
    """Measure a part; the setting of those that follow."""
    share, rows = PARTS[name]
    left = setting.budget.left
    print(f"{name}: {left:.0f} s are left", flush=True)
    if left < 0:
        return setting
    for row in rows(replace(setting, budget=setting.budget.part(share))):
        writer.add(row)
        if row.copy_share == 1.0 and row.section == ceilings.SECTION:
            setting = replace(setting, copy_gb_s=row.gb_s)
    return setting


def _why() -> str:
    with ptac.enable("operator_fusion"):
        return str(ptac.status()["operator_fusion"].get("cuda"))


def _show(row: Row) -> None:
    figures = [f"{row.best_us:.1f} us"] if row.best_us else []
    if row.ratio and row.variant != "stock":
        figures.append(f"{row.ratio:.2f}x")
    if row.launches:
        figures.append(f"{row.launches} launches")
    if row.gb_s:
        figures.append(f"{row.gb_s:.0f} GB/s, {row.copy_share:.0%} of a copy")
    if row.tflop_s:
        figures.append(f"{row.tflop_s:.1f} TFLOP/s")
    what = [row.case, row.dtype, row.variant, ", ".join(figures), row.served, row.note]
    print("  " + "; ".join(part for part in what if part), flush=True)
