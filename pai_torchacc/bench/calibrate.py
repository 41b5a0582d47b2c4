"""Measure every row against stock on this machine and write a calibration table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.bench.cases import Case, Gradient, Planned, cases
from pai_torchacc.bench.measure import (
    alternate,
    environment,
    raise_malloc_thresholds,
    thread_counts,
)
from pai_torchacc.bench.tables import header, write_measurements
from pai_torchacc.calibration import (
    BY_NAME,
    COLUMNS,
    WITH_AMX,
    Measurement,
    read_table,
)
from pai_torchacc.commands.usage import UsageError, check_outputs

LEAST_RATIO = 0.01
"""What a table writes for a row that is slower by more: its reader takes no zero."""

ISAS = ("scalar", "avx2", "avx512")
"""Instruction sets, each with what comes before it."""

BEYOND = {
    "scalar": {"avx2", "avx512", "avx", "amx"},
    "avx2": {"avx512", "amx"},
    "avx512": {"amx"},
}
"""Words in the names of rows that need more than such an instruction set."""

ROUNDING = frozenset({"bf16", "bf16_products"})

VENDOR_BOUND = ROUNDING | {"onednn"}
"""Rows whose gain depends on whose CPU it is more than on its instruction set.

Products of bfloat16 are twice as fast as float32's on one CPU and half as fast on
another, both with AVX-512.
"""

OF_AMX = ROUNDING | {"amx"}
"""Rows that use AMX where there is any, or nothing else."""

Progress = Callable[[str, float], None]
"""Told what is measured next, and its share of the whole."""


@dataclass(frozen=True)
class Chosen:
    """Operators that are measured; only kinds and rows of such names, if any."""

    ops: frozenset[str]
    kinds: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    """Patterns as a shell has them."""

    def __contains__(self, measured: object) -> bool:
        """Whether a case or a measurement is one of them."""
        op, kind = measured.op, measured.kind  # type: ignore[attr-defined]
        row = getattr(measured, "row", None)
        is_named = not self.kinds or any(fnmatchcase(kind, x) for x in self.kinds)
        return op in self.ops and is_named and (row is None or self.takes(row))

    def takes(self, row: str) -> bool:
        """Whether a row of that name is measured."""
        return not self.rows or any(fnmatchcase(row, x) for x in self.rows)


def chosen(
    ops: list[str] | None, kinds: list[str] | None, rows: list[str] | None
) -> Chosen | None:
    """What the command line names; None: all there is."""
    return (
        Chosen(frozenset(ops), tuple(kinds or ()), tuple(rows or ())) if ops else None
    )


def _worst(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for each row at each place: that of the least ratio."""
    found: dict[tuple[Any, ...], Measurement] = {}
    for m in measurements:
        if m[:6] not in found or m.ratio < found[m[:6]].ratio:
            found[m[:6]] = m
    return list(found.values())


def measure(
    progress: Progress | None = None,
    only: Chosen | None = None,
    blocks: int = 7,
    block_s: float = 0.01,
) -> Iterator[Measurement]:
    """Yield one measurement for each case, thread count and runnable row.

    The process's thread count and switches are as before when it ends.
    """
    raise_malloc_thresholds()
    c = _host.load()
    rows = {
        name: [
            row
            for row, _, can_run, _ in rows
            if can_run and (only is None or only.takes(row))
        ]
        for name, _, rows in c.operators()
    }
    listed = [x for x in cases() if only is None or x in only]
    threads_before = torch.get_num_threads()
    total = len(listed) * len(thread_counts())
    try:
        for n_threads in thread_counts():
            torch.set_num_threads(n_threads)
            for case in listed:
                if progress:
                    progress(f"{case.op} {case.kind} {case.dtype}", 1 / total)
                yield from _measure_case(
                    c, case, rows[case.op], n_threads, blocks, block_s
                )
    finally:
        torch.set_num_threads(threads_before)


def _measure_case(
    c: Any, case: Case, rows: list[str], n_threads: int, blocks: int, block_s: float
) -> Iterator[Measurement]:
    worst: dict[str, tuple[float, float]] = {}
    calls = []
    for make in case.variants:
        torch.manual_seed(0)
        calls.append(make())
    rows = [row for row in rows if all(_may_be_named(c, case, row, x) for x in calls)]
    for call in calls:
        for row, (ratio, stock_us) in _time_rows(
            c, case, rows, call, blocks, block_s
        ).items():
            if row not in worst or ratio < worst[row][0]:
                worst[row] = ratio, stock_us
    for row, (ratio, stock_us) in worst.items():
        yield Measurement(
            case.op,
            case.kind,
            case.dtype,
            n_threads,
            case.work,
            row,
            max(round(ratio, 2), LEAST_RATIO),
            round(stock_us, 1),
        )


def _time_rows(
    c: Any, case: Case, rows: list[str], call: Any, blocks: int, block_s: float
) -> dict[str, tuple[float, float]]:
    """Per row that takes the call: (stock's time divided by its own, stock's in us)."""
    own, others = (case.op, *case.with_ops), case.forwarded_to
    asked = [row for row in rows if row not in case.without_rows]
    taken = [row for row in asked if _takes(c, case, row, call)]
    variants: dict[Any, Any] = {
        "stock": (partial(stock, call), getattr(call, "stock", call))
    }
    for row in taken:
        variants[row] = partial(_only, c, own, row, call), call
        if others:
            variants[row, "forwarded"] = partial(_rivals, c, others, row, call), call
    try:
        timings = alternate(variants, blocks, block_s)
    finally:
        _unpin(c, (*own, *others))
    stock_s = timings["stock"].best
    rival = {row: timings.get((row, "forwarded"), timings["stock"]) for row in taken}
    return {
        row: (min(stock_s, rival[row].best) / timings[row].best, stock_s * 1e6)
        for row in taken
    }


def begin(call: Any) -> None:
    """Tell a call that asks for it that other rows are on."""
    if isinstance(call, Gradient | Planned):
        call.begin()


def stock(call: Any) -> None:
    """Switch all off, and tell a call that asks for it."""
    ptac.disable()
    begin(call)


def _only(c: Any, ops: tuple[str, ...], row: str, call: Any) -> None:
    """Switch one row on, of those of these operators that have it, and all else off."""
    rows = {name: {own for own, *_ in rows} for name, _, rows in c.operators()}
    ops = tuple(op for op in ops if row in rows[op])
    for name in rows:
        c.pin(name, row if name in ops else None)
    backward = {name for name, _, _ in c.operators() if name.endswith("_backward")}
    is_int8 = not set(ops).difference(BY_NAME)
    ptac.enable(
        "model_quantization" if is_int8 else "operator_fusion",
        include=ops,
        exclude=backward.difference(ops),  # which the name of its forward includes
        numerics="fast",
    )
    begin(call)


def _rivals(c: Any, ops: tuple[str, ...], row: str, call: Any) -> None:
    """Switch on what a call comes to else: this row, or those that a table names."""
    for name, _, rows in c.operators():
        has_it = name in ops and row in {own for own, *_ in rows}
        c.pin(name, row if has_it else None)
    ptac.enable("operator_fusion", include=ops, numerics="fast")
    begin(call)


def _unpin(c: Any, ops: tuple[str, ...]) -> None:
    for op in ops:
        c.pin(op, None)
    ptac.disable()


def _takes(c: Any, case: Case, row: str, call: Any) -> bool:
    own = case.op, *case.with_ops
    _only(c, own, row, call)
    before = c.counters(case.op)[0]
    call()
    taken = c.counters(case.op)[0] > before
    _unpin(c, own)
    return taken


def _may_be_named(c: Any, case: Case, row: str, call: Any) -> bool:
    """Not where the row leaves such calls to stock whatever a table says."""
    return not _takes(c, case, row, call) or c.pinned_pays()


def write(
    path: Path, measurements: list[Measurement], remarks: list[str] | None = None
) -> None:
    """Write a table with a header that says where it comes from."""
    head = header(environment(), "pai_torchacc", remarks or [])
    write_measurements(path, head, COLUMNS, sorted(measurements))


def generic(
    measurements: list[Measurement], isa: str, *, has_amx: bool = False
) -> list[Measurement]:
    """What another CPU of an instruction set can rely on.

    Rows that need more are left out. Rows whose gain another vendor's CPU may not share
    keep their places, without a ratio that is fast enough, so that a call there does
    not take the decision of a smaller size. What AMX gained is said of CPUs with AMX.
    """
    shared = [
        m._replace(ratio=min(m.ratio, 1.0)) if m.row in VENDOR_BOUND else m
        for m in measurements
        if not BEYOND[isa].intersection(m.row.split("_"))
    ]
    of_amx = [
        m._replace(row=m.row + WITH_AMX)
        for m in measurements
        if has_amx and isa == ISAS[-1] and m.row in OF_AMX
    ]
    return [*shared, *of_amx]


def fastest(
    measurements: Iterable[Measurement], levels: Mapping[tuple[str, str], str]
) -> list[Measurement]:
    """Keep of each place the fastest row of each level: others are never chosen there.

    ``levels`` are those of (operator, row); of others nothing is left out.
    """
    found: dict[tuple[Any, ...], Measurement] = {}
    for m in measurements:
        place = *m[:5], levels.get((m.op, m.row), m.row)
        if place not in found or m.ratio > found[place].ratio:
            found[place] = m
    return list(found.values())


def _levels() -> dict[tuple[str, str], str]:
    return {
        (op, row): level
        for op, _, rows in _host.load().operators()
        for row, level, _, _ in rows
    }


def _write_generic(
    folder: Path, measurements: list[Measurement], chosen: Chosen | None
) -> None:
    own = _host.load().cpu()[1]
    for isa in _isas_here():
        remarks = []
        if isa != own:
            remarks = [f"stock had {own} here: on CPUs without it ratios are higher"]
        path = _generic_file(folder, isa)
        has_amx = "amx" in _host.load().bf16_hardware()
        rows = fastest(generic(measurements, isa, has_amx=has_amx), _levels())
        _write_beside_others(path, rows, chosen, remarks)


def _write_beside_others(
    path: Path,
    measurements: list[Measurement],
    chosen: Chosen | None,
    remarks: list[str],
) -> None:
    others, header = kept(path, chosen, None)
    write(path, [*measurements, *others], [*remarks, *header])


def kept(
    path: Path, chosen: Chosen | None, device: str | None
) -> tuple[list[Measurement], list[str]]:
    """What a table keeps of others than are chosen, and remarks that say whence it is.

    UsageError where the file there is no table of this GPU, or of a CPU for None.
    """
    if chosen is None or not path.is_file():
        return [], []
    try:
        table = read_table(path)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if table.device != device:
        raise UsageError(f"{path} is of {table.device or 'a CPU'}")
    lines = path.read_text(encoding="utf-8").splitlines()
    header = [line.lstrip("# ") for line in lines if line.startswith("#")]
    what = "rows" if chosen.rows else "kinds" if chosen.kinds else "operators"
    remarks = [f"{what} not named there: {line}" for line in header]
    return [m for m in table.measurements if m not in chosen], remarks


def _isas_here() -> tuple[str, ...]:
    return ISAS[: ISAS.index(_host.load().cpu()[1]) + 1]


def _generic_file(folder: Path, isa: str) -> Path:
    return folder / f"generic-{isa}.csv"


def run(path: Path, only: Chosen | None, is_generic: bool) -> dict[str, Any]:
    """Calibrate, showing progress, and write the table; a summary as a document."""
    from pai_torchacc.bench.progress import shown

    _check(path, only, is_generic)
    measurements = _worst(shown(lambda progress: measure(progress, only)))
    if not measurements:
        raise UsageError("no row of this machine takes any of these calls")
    _write_beside_others(path, measurements, only, [])
    if is_generic:
        _write_generic(path.parent, measurements, only)
    print(f"{len(measurements)} measurements in {path}; use it with PTAC_CALIBRATION")
    return {"file": str(path), "measurements": len(measurements)}


def _check(path: Path, only: Chosen | None, is_generic: bool) -> None:
    """Raise what would come up after minutes of measuring."""
    check_outputs([path])
    kept(path, only, None)
    if is_generic:
        check_outputs(_generic_file(path.parent, isa) for isa in _isas_here())
    ops, kinds = (only.ops, only.kinds) if only else (frozenset[str](), ())
    listed = list(cases())
    measured = sorted({case.op for case in listed})
    wrong = sorted(ops.difference(measured))
    if wrong:
        raise UsageError(
            f"--ops: nothing to measure for {', '.join(wrong)}; "
            f"there are: {', '.join(measured)}"
        )
    there = sorted({case.kind for case in listed if case.op in ops})
    for pattern in kinds:
        if not any(fnmatchcase(kind, pattern) for kind in there):
            raise UsageError(
                f"--kinds: {pattern} is no kind of {', '.join(sorted(ops))}; "
                f"there are: {', '.join(there)}"
            )
