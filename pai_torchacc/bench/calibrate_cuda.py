"""Measure every row of a CUDA device that torch's calls reach against stock.

Nothing decides by this table: a row serves there because it launches and moves less
than stock does. It shows where that was not enough.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.bench import calibrate, measure_cuda
from pai_torchacc.bench.cases import Case, cases
from pai_torchacc.bench.measure import environment
from pai_torchacc.bench.tables import header, write_measurements
from pai_torchacc.calibration import Work
from pai_torchacc.commands.usage import UsageError, check_outputs
from pai_torchacc.fusion import cuda

LOSES = 0.97
"""A ratio below this one is more than noise."""


class Measured(NamedTuple):
    """A case of a row: the least ratio of its variants, and stock's time of that."""

    op: str
    kind: str
    dtype: str
    work: Work
    row: str
    ratio: float
    stock_us: float


def measure(
    progress: Callable[[str, float], None],
    only: frozenset[str] | None = None,
    blocks: int = 7,
    block_s: float = 0.01,
) -> Iterator[Measured]:
    """Yield a measurement for each case that we serve on the current device."""
    c = _host.load()
    rows = {op: row for op, row, *_ in cuda.rows(c)}
    listed = [x for x in cases() if x.op in rows and (only is None or x.op in only)]
    for case in listed:
        progress(f"{case.op} {case.kind} {case.dtype}", 1 / len(listed))
        found = []
        for make in case.variants:
            torch.manual_seed(0)
            with torch.device("cuda"):
                call = make()
            if times := _time(c, case, call, blocks, block_s):
                found.append(times)
        if found:
            ratio, stock_us = min(found)
            what = case.op, case.kind, case.dtype, case.work, rows[case.op]
            yield Measured(*what, round(ratio, 3), round(stock_us, 1))


def _time(
    c: Any, case: Case, call: Any, blocks: int, block_s: float
) -> tuple[float, float] | None:
    """Stock's time divided by ours, and stock's in us; None where stock does it."""
    try:
        _ours(case, call)
        before = c.counters(case.op)[0]
        call()
        if c.counters(case.op)[0] == before:
            return None
        variants = {
            "stock": partial(calibrate.stock, call),
            "ours": partial(_ours, case, call),
        }
        timings = measure_cuda.alternate(
            {name: (prepare, call) for name, prepare in variants.items()},
            blocks,
            block_s,
        )
    finally:
        ptac.disable()
    stock, ours = timings["stock"], timings["ours"]
    return stock.best / ours.best, stock.best * 1e6


def _ours(case: Case, call: Any) -> None:
    """Switch on what the case is about, and what its call needs."""
    ptac.enable("operator_fusion", include=(case.op, *case.with_ops))
    calibrate.begin(call)


def _write(path: Path, measured: list[Measured]) -> None:
    facts = environment()
    facts["device"] = (
        "emulated: ratios mean nothing"
        if measure_cuda.is_emulated()
        else torch.cuda.get_device_name()
    )
    by_place = sorted(measured, key=lambda m: m[:3])
    write_measurements(path, header(facts, "pai_torchacc"), Measured._fields, by_place)


def _summary(measured: list[Measured], asked: frozenset[str]) -> Iterator[str]:
    """A line an operator, then one for each place where it loses."""
    for op in dict.fromkeys(m.op for m in measured):
        ratios = [m.ratio for m in measured if m.op == op]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        least = min(ratios)
        yield f"{op}: {len(ratios)} cases, mean {mean:.2f}x, least {least:.2f}x"
    for op in sorted(asked.difference(m.op for m in measured)):
        yield f"{op}: stock does all cases"
    for m in measured:
        if m.ratio < LOSES:
            where = f"{m.kind}, {m.dtype}, work {m.work}"
            yield f"slower than stock: {m.op} ({m.row}), {where}: {m.ratio:.2f}x"


def run(path: Path, ops: list[str] | None) -> dict[str, Any]:
    """Measure, showing progress, and write the table; a summary as a document."""
    from pai_torchacc.bench.progress import shown

    check_outputs([path])
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: there is no CUDA device")
    known = {op for op, *_ in cuda.rows(_host.load())} & {x.op for x in cases()}
    if wrong := sorted(set(ops or ()).difference(known)):
        raise UsageError(
            f"--ops: nothing to measure on CUDA for {', '.join(wrong)}; "
            f"there are: {', '.join(sorted(known))}"
        )
    for unit, why in measure_cuda.provide().items():
        print(f"no machine code for {unit}: {why}", file=sys.stderr)
    asked = frozenset(ops or known)
    measured = shown(lambda progress: measure(progress, asked))
    if not measured:
        raise UsageError("no row of CUDA's takes any of these calls")
    _write(path, measured)
    lines = list(_summary(measured, asked))
    for line in [*lines, f"{len(measured)} measurements in {path}"]:
        print(line)
    return {"file": str(path), "measurements": len(measured), "summary": lines}
