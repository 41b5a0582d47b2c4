"""Measure every row of a CUDA device that torch's calls reach against stock.

The table decides for devices of that name: :mod:`pai_torchacc.calibration.on_cuda`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.bench import calibrate, measure_cuda
from pai_torchacc.bench.cases import Case, cases_on_cuda
from pai_torchacc.bench.measure import environment
from pai_torchacc.bench.tables import header, write_measurements
from pai_torchacc.calibration import CUDA_COLUMNS, Measurement
from pai_torchacc.calibration.on_cuda import NOT_SLOWER
from pai_torchacc.commands.usage import UsageError, check_outputs
from pai_torchacc.fusion import cuda

Times = tuple[float, float, str]
"""Stock's time divided by ours, stock's in us, and the row."""


def measure(
    progress: Callable[[str, float], None],
    only: frozenset[str] | None = None,
    blocks: int = 7,
    block_s: float = 0.01,
) -> Iterator[Measurement]:
    """Yield a measurement for each case that we serve on the current device.

    The worst of its variants counts. Rows serve whatever a table or a model says.
    """
    c = _host.load()
    served = {op for op, *_ in cuda.rows(c)}
    listed = [
        x for x in cases_on_cuda() if x.op in served and (only is None or x.op in only)
    ]
    c.cuda_measuring(True)
    try:
        for case in listed:
            progress(f"{case.op} {case.kind} {case.dtype}", 1 / len(listed))
            if found := list(_variants(c, case, blocks, block_s)):
                ratio, stock_us, row = min(found)
                place = case.op, case.kind, case.dtype, 1, case.work
                yield Measurement(*place, row, round(ratio, 3), round(stock_us, 1))
    finally:
        c.cuda_measuring(False)


def _variants(c: Any, case: Case, blocks: int, block_s: float) -> Iterator[Times]:
    for make in case.variants:
        torch.manual_seed(0)
        with torch.device("cuda"):
            call = make()
        with _tf32(case.allows_tf32):
            if times := _time(c, case, call, blocks, block_s):
                yield times


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def _time(c: Any, case: Case, call: Any, blocks: int, block_s: float) -> Times | None:
    """None where stock does it."""
    own = case.op, *case.with_ops
    try:
        _ours(own, call)
        before = c.counters(case.op)[0]
        call()
        if c.counters(case.op)[0] == before:
            return None
        # Of a thread of autograd's it is not known: the row that goes first.
        row = c.last_row(case.op) or dict(reversed(_rows(c)))[case.op]
        variants = {
            "stock": partial(calibrate.stock, call),
            "ours": partial(_ours, own, call),
        }
        if case.forwarded_to:
            variants["forwarded"] = partial(_ours, case.forwarded_to, call)
        timings = measure_cuda.alternate(
            {name: (prepare, call) for name, prepare in variants.items()},
            blocks,
            block_s,
        )
    finally:
        ptac.disable()
    stock, ours = timings["stock"].best, timings["ours"].best
    rival = min(stock, timings.get("forwarded", timings["stock"]).best)
    return rival / ours, stock * 1e6, row


def _rows(c: Any) -> list[tuple[str, str]]:
    return [(op, row) for op, row, *_ in cuda.rows(c)]


def _ours(ops: tuple[str, ...], call: Any) -> None:
    """Switch these operators on, and all else off."""
    ptac.enable("operator_fusion", include=ops)
    calibrate.begin(call)


def _write(path: Path, measured: list[Measurement], remarks: list[str]) -> None:
    facts = environment() | {"device": _device()}
    if measure_cuda.is_emulated():
        remarks = ["emulated: ratios mean nothing", *remarks]
    by_place = sorted(measured, key=lambda m: m[:3])
    head = header(facts, "pai_torchacc", remarks)
    write_measurements(path, head, CUDA_COLUMNS, by_place)


def _device() -> str:
    return str(_host.load().cuda_name(torch.cuda.current_device()))


def _summary(measured: list[Measurement], asked: frozenset[str]) -> Iterator[str]:
    """A line an operator, then one for each place where it loses."""
    for op in dict.fromkeys(m.op for m in measured):
        ratios = [m.ratio for m in measured if m.op == op]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        least = min(ratios)
        yield f"{op}: {len(ratios)} cases, mean {mean:.2f}x, least {least:.2f}x"
    for op in sorted(asked.difference(m.op for m in measured)):
        yield f"{op}: stock does all cases"
    for m in measured:
        if m.ratio < NOT_SLOWER:
            where = f"{m.kind}, {m.dtype}, work {m.work}"
            yield f"slower than stock: {m.op} ({m.row}), {where}: {m.ratio:.2f}x"


def run(path: Path, ops: list[str] | None) -> dict[str, Any]:
    """Measure, showing progress, and write the table; a summary as a document."""
    from pai_torchacc.bench.progress import shown

    check_outputs([path])
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: there is no CUDA device")
    served = {op for op, *_ in cuda.rows(_host.load())}
    known = served & {x.op for x in cases_on_cuda()}
    if wrong := sorted(set(ops or ()).difference(known)):
        raise UsageError(
            f"--ops: nothing to measure on CUDA for {', '.join(wrong)}; "
            f"there are: {', '.join(sorted(known))}"
        )
    chosen = calibrate.Chosen(frozenset(ops)) if ops else None
    others, remarks = calibrate.kept(path, chosen, _device())
    for unit, why in measure_cuda.provide().items():
        print(f"no machine code for {unit}: {why}", file=sys.stderr)
    asked = frozenset(ops or known)
    measured = shown(lambda progress: measure(progress, asked))
    if not measured:
        raise UsageError("no row of CUDA's takes any of these calls")
    _write(path, [*measured, *others], remarks)
    lines = list(_summary(measured, asked))
    n = len(measured) + len(others)
    use = f"{n} measurements in {path}; use it with PTAC_CALIBRATION"
    for line in [*lines, use]:
        print(line)
    return {"file": str(path), "measurements": len(measured), "summary": lines}
