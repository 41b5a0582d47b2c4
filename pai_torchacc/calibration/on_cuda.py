"""Tables of GPUs: where our kernels serve by them, and where stock does.

Most kernels cannot lose to stock by what they launch and move, and serve unmeasured.
They serve as well where they were not measured slower by more than noise. Layers, whose
gradients are a node of Python's in autograd's graph, serve where they were measured
faster. What a table does not know is decided as without one: other kinds of calls,
other dtypes, calls smaller than all that were measured.
"""

from __future__ import annotations

from typing import Any

from pai_torchacc import calibration
from pai_torchacc.calibration import BY_NAME, FASTER, Point, Table

NOT_SLOWER = 0.97
"""A ratio below this one is more than noise."""

BY_MODEL = ("linear_act", "mlp")
"""Operators that without a table a model of the GPU lets in."""


def points(c: Any, table: Table, numerics: str) -> list[Point]:
    """Decide, for every measured place, which row runs there, None for stock.

    Rows that this version does not have are left out with all they say.
    """
    rows: dict[str, list[tuple[str, str, bool, bool]]] = {}
    least_of = dict.fromkeys(BY_MODEL, FASTER)
    for op, row, level, needs_no_table, is_quarantined in c.cuda_rows():
        if op in BY_NAME:
            continue
        rows.setdefault(op, []).append((row, level, True, is_quarantined))
        if not needs_no_table:
            least_of[op] = FASTER
    named = {(op, row) for op, found in rows.items() for row, *_ in found}
    known = table._replace(
        measurements=[m for m in table.measurements if (m.op, m.row) in named],
        least_ratio=NOT_SLOWER,
        least_of=least_of,
    )
    kinds = {op: kinds for op, kinds, _ in c.operators()}
    operators = [(op, kinds[op], found) for op, found in rows.items()]
    return calibration.points(known, operators, numerics)[0]
