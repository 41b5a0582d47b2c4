"""Calibration tables: what was measured, and which row it speaks for.

A table is a CSV file. Each line is one measurement of one kernel row against stock at
one size: ``ratio`` is stock's time divided by the row's. Lines that start with ``#``
tell the machine, the versions and the command. Where stock's way leads through another
operator of ours, as that of cross-entropy does through log-softmax, the ratio is to the
faster of stock with and without it.

A GPU's table has no column ``threads``, and a line ``# device: NAME`` says whose it is;
see :mod:`~pai_torchacc.calibration.on_cuda`. None is shipped. The rest is about CPUs.

Lookup order: the file that the caller or ``PTAC_CALIBRATION`` names; the table of this
CPU family; for kinds of operators that it lacks, or without one, the generic table of
its instruction set, of which only rows measured at least 1.15 times as fast count,
since other CPUs of that set are not the measured one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

FASTER = 1.05
FASTER_ELSEWHERE = 1.15
LEVELS = ("exact", "close", "fast")

BY_NAME = (
    "int8_linear",
    "int8_conv2d",
    "int8_embedding",
    "int8_sublayer",
    "fp8_linear",
)
"""Operators whose switch is asked for by name and carries a bound of its own."""

DIVIDED = {
    "1x1": (
        *(f"1x1_{few}" for few in ("few", "16", "32", "64", "128", "256")),
        "1x1_point", "1x1_small", "1x1_small_64", "1x1_small_256",
        "1x1_strided", "1x1_strided_512", "1x1_strided_1024",
    ),
    "strided": tuple(
        f"strided_{few}" for few in ("first", "few", "16", "64", "256", "512")
    ),
    "other": ("other_few", "other"),
}  # fmt: skip
"""Kinds of convolutions that are several now: what was measured of one is said of all.

Their work is counted alike. A table that has lines of such a part says no more of it.
"""

WITH_AMX = "+amx"
"""Behind a row's name: measured on a CPU with AMX, and said of such CPUs alone.

They multiply bfloat16 many times as fast as float32, whoever makes them; others of the
same instruction set twice as fast, or half.
"""

_HERE = Path(__file__).parent


Work = int | tuple[int, int, int]


class Measurement(NamedTuple):
    """One row against stock at one place; ``stock_us`` is stock's time.

    The work of a product is its three sizes, in the file ``rowsxtermsxcolumns``. On a
    GPU there is one thread.
    """

    op: str
    kind: str
    dtype: str
    threads: int
    work: Work
    row: str
    ratio: float
    stock_us: float


COLUMNS = Measurement._fields
CUDA_COLUMNS = tuple(name for name in COLUMNS if name != "threads")

DEVICE = "# device: "
"""How the line begins that says which GPU a table is of."""


class Table(NamedTuple):
    """A table and how far it may be trusted."""

    name: str
    measurements: list[Measurement]
    least_ratio: float
    least_of: Mapping[str, float] = {}
    """Other least ratios, by operator."""
    device: str | None = None
    """The name of the GPU that it is of; None for a CPU."""


def read(path: Path) -> list[Measurement]:
    """Read the table of a CPU: :func:`read_table` of another is a ValueError."""
    table = read_table(path)
    if table.device is not None:
        raise ValueError(f"{path} is of a GPU: {table.device}")
    return table.measurements


def read_table(path: Path) -> Table:
    """Read the table of a CPU or a GPU.

    Raises
    ------
    ValueError
        The file is not a calibration table; the text names the line.
    OSError
        It cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a mark
    except UnicodeDecodeError:
        text = ""
    lines = text.splitlines()
    numbers = [n for n, line in enumerate(lines) if line.strip() and line[0] != "#"]
    # One reader for all: making one for each takes a hundred milliseconds in a process
    # with torch in it, for whose objects the garbage collector then looks.
    rows = csv.reader([lines[n] for n in numbers], strict=True)
    found: dict[tuple[Any, ...], Measurement] = {}
    columns = tuple(_fields(rows)) if numbers else ()
    if columns not in (COLUMNS, CUDA_COLUMNS):
        raise ValueError(
            f"{path} is not a calibration table: its columns should be "
            f"{','.join(COLUMNS)}"
        )
    device = _device(path, lines) if columns == CUDA_COLUMNS else None
    for n in numbers[1:]:
        fields = _fields(rows)
        if device is not None:
            fields.insert(COLUMNS.index("threads"), "1")
        m = _measurement(fields)
        if m is None or found.setdefault(m[:6], m) is not m:
            why = "measured before" if m else "not a measurement"
            raise ValueError(f"{path}, line {n + 1}: {why}: {lines[n]}")
    return Table(str(path), list(found.values()), FASTER, device=device)


def _device(path: Path, lines: list[str]) -> str:
    for line in lines:
        if line.startswith(DEVICE) and (name := line.removeprefix(DEVICE).strip()):
            return name
    raise ValueError(f"{path} lacks the line {DEVICE}NAME that says which GPU it is of")


def read_shipped(
    path: Path, without: Container[tuple[str, str]] = ()
) -> list[Measurement]:
    """Read a table of this package, whose tests hold it to :func:`read`, sooner.

    Lines of kinds of operators that are not wanted are not made measurements: the
    garbage collector would look at all objects of torch's for thousands more of them.
    """
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line and line[0] != "#"]
    if without:
        rows = [line for line in rows if tuple(line.split(",", 2)[:2]) not in without]
    fields = ",".join(rows[1:]).split(",") if rows[1:] else []
    op, kind, dtype, threads, work, row, ratio, stock_us = (
        fields[i :: len(COLUMNS)] for i in range(len(COLUMNS))
    )
    sizes = [_work(text) if "x" in text else int(text) for text in work]
    columns = zip(
        op, kind, dtype, map(int, threads), sizes, row, map(float, ratio),
        map(float, stock_us), strict=True,
    )  # fmt: skip
    return list(map(Measurement._make, columns))


def _fields(rows: Iterator[list[str]]) -> list[str]:
    try:
        return next(rows)
    except (csv.Error, StopIteration):  # quotes that do not end
        return []


def _measurement(fields: list[str]) -> Measurement | None:
    try:
        op, kind, dtype, threads, work, row, ratio, stock_us = fields
        m = Measurement(
            op, kind, dtype, int(threads), _work(work), row, float(ratio),
            float(stock_us),
        )  # fmt: skip
    except ValueError:
        return None
    is_whole = 0 < m.threads < 1 << 31 and _is_work(m.work)
    is_sound = is_whole and 0 < m.ratio < math.inf and 0 <= m.stock_us < math.inf
    return m if is_sound else None


def _work(text: str) -> Work:
    if "x" not in text:
        return int(text)
    rows, terms, columns = text.split("x")
    return int(rows), int(terms), int(columns)


def _is_work(work: Work) -> bool:
    if isinstance(work, int):
        return 0 <= work < 1 << 63
    return min(work) > 0 and math.prod(work) < 1 << 63


@cache
def find(model: str, isa: str, is_limited: bool) -> Table:
    """Choose the shipped table for a CPU, by its name ``vendor-family-model``.

    A family's own comes first, named ``vendor-family`` or, where a family has CPUs of
    several instruction sets, ``vendor-family-isa``. It does not apply where
    ``is_limited``: a lower instruction set was forced.
    """
    name = model.rpartition("-")[0]
    family = _shipped(f"{name}-{isa}") or _shipped(name)
    name = f"generic-{isa}"
    if family and not is_limited:
        return _completed(family._replace(least_ratio=FASTER), name)
    return _shipped(name) or Table(name, [], FASTER_ELSEWHERE)


def _completed(family: Table, name: str) -> Table:
    """A family's table, with the generic one's kinds of operators that it lacks."""
    generic = _shipped(name, frozenset((m.op, m.kind) for m in family.measurements))
    if generic is None or not generic.measurements:
        return family
    others = [
        m if m.ratio >= generic.least_ratio else m._replace(ratio=min(m.ratio, 1.0))
        for m in generic.measurements
    ]
    return family._replace(
        name=f"{family.name}+{name}", measurements=[*family.measurements, *others]
    )


@cache
def _shipped(
    name: str, without: frozenset[tuple[str, str]] = frozenset()
) -> Table | None:
    """A table of this package, whose files stay as they are while it runs."""
    path = _HERE / f"{name}.csv"
    if not path.is_file():
        return None
    return Table(name, read_shipped(path, without), FASTER_ELSEWHERE)


def _in_todays_kinds(
    measurements: list[Measurement], allowed: Mapping[str, Container[str]]
) -> Iterator[Measurement]:
    """The same, with kinds that were divided as what they were divided into.

    Of rows that are not allowed the parts would say no more than that stock runs, at
    places where others were not measured.
    """
    known = {(m.op, m.kind, m.row) for m in measurements}
    for m in measurements:
        kind, _, gradient = m.kind.partition("_")
        parts = DIVIDED.get(kind) if gradient in {"", "data", "weight"} else None
        if parts is None or not m.op.startswith("conv2d"):
            yield m
            continue
        for part in parts if m.row in allowed.get(m.op, ()) else ():
            name = f"{part}_{gradient}" if gradient else part
            if name == m.kind or (m.op, name, m.row) not in known:
                yield m._replace(kind=name)


def _said_here(
    measurements: list[Measurement],
    has_amx: bool,
    allowed: Mapping[str, Container[str]],
) -> Iterator[Measurement]:
    """What holds on this CPU, of lines that are said of CPUs with AMX.

    They are measured at places of their own, too. Of a row that is not allowed such a
    place would say that stock runs, between places where another row was faster.
    """
    others = {m[:4] for m in measurements if not m.row.endswith(WITH_AMX)}
    for m in measurements:
        row = m.row.removesuffix(WITH_AMX)
        if row == m.row:
            yield m
        elif has_amx and (row in allowed.get(m.op, ()) or m[:4] not in others):
            yield m._replace(row=row)


Others = tuple[tuple[str, float], ...]
Point = tuple[str, str, str, int, Work, str | None, float, float, Others]

_MOST_OTHERS = 3


def points(
    table: Table, operators: Iterable[Any], numerics: str, *, has_amx: bool = False
) -> tuple[list[Point], set[str]]:
    """Decide, for every measured place, which row runs there.

    Parameters
    ----------
    operators : iterable of (name, kinds, rows)
        As the extension describes them; a row is (name, level, runnable, quarantined).
    numerics : str
        Rows above this level are left out.
    has_amx : bool
        Whether products of bfloat16 may use AMX here.

    Returns
    -------
    points : list of (op, kind, dtype, threads, work, row or None, stock_us, ratio,
        ((other row, its ratio), ...))
        None stands for stock; ``ratio`` is then 1. The others came next: for calls that
        are spared more than was measured, and between places with unlike rows.
    barred : set of str
        Operators that only the numerics level keeps from running.
    """
    highest = LEVELS.index(numerics)
    kinds = {}
    allowed = {}
    runnable = {}
    for op, op_kinds, rows in operators:
        kinds[op] = set(op_kinds)
        runnable[op] = {name for name, _, can_run, _ in rows if can_run}
        allowed[op] = {
            name for name, level, can_run, _ in rows
            if can_run and (op in BY_NAME or LEVELS.index(level) <= highest)
        }  # fmt: skip
    rows_at: dict[
        tuple[str, str, str, int, Work], list[tuple[float, str | None, float]]
    ] = {}
    said = list(_said_here(table.measurements, has_amx, allowed))
    for m in _in_todays_kinds(said, allowed):
        if m.kind not in kinds.get(m.op, ()):
            continue  # measured by another version of this package
        least = table.least_of.get(m.op, table.least_ratio)
        found = rows_at.setdefault(
            (m.op, m.kind, m.dtype, m.threads, m.work), [(least, None, m.stock_us)]
        )
        if m.row in allowed[m.op]:
            found.append((m.ratio, m.row, m.stock_us))
    barred = {op for op in runnable if runnable[op] and not allowed[op]}
    points = []
    for place, found in rows_at.items():
        # A row that is as fast as it has to be goes before stock.
        found.sort(key=lambda one: (-one[0], one[1] is None))
        ratio, row, stock_us = found[0]
        least = table.least_of.get(place[0], table.least_ratio)
        doubts = FASTER / least  # weigh there as well
        others = [(name, r * doubts) for r, name, _ in found[1:] if name is not None]
        ratio = 1.0 if row is None else ratio
        points.append((*place, row, stock_us, ratio, tuple(others[:_MOST_OTHERS])))
    return points, barred
