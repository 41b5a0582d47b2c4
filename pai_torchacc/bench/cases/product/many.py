"""Products of many small matrices, as attention that is written out multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pai_torchacc.bench.cases.case import Call, Case

LEAST_ROWS = (96, 32, 8, 2, 1)
"""The kinds, by how many rows a matrix has at least."""

SIZES = (
    *((8, 8), (16, 16), (32, 32), (64, 64), (128, 128)),
    *((32, 128), (128, 32), (64, 128), (128, 64)),
)
"""As (terms, columns)."""

SHAPES = (
    *((n_all, m, k, n) for n_all in (4, 32) for m in (1, 4, 16, 64, 128)
      for k, n in SIZES),
    *((16, 256, k, n) for k, n in ((64, 256), (256, 64), (256, 256))),
    *((8, 512, k, n) for k, n in ((64, 512), (512, 64), (512, 512))),
)  # fmt: skip
"""As (matrices, rows, terms, columns)."""


def cases() -> Iterator[Case]:
    """Cases of bmm and baddbmm; the rows in a case's work are those of all matrices."""
    for shape in SHAPES:
        n_all, m, k, n = shape
        least = next(rows for rows in LEAST_ROWS if m >= rows)
        work = n_all * m, k, n
        for order in ("nn", "nt", "tn"):
            for op in ("bmm", "baddbmm"):
                if op == "baddbmm" and (order == "tn" or k != n):
                    continue
                make = partial(_make, op, order, shape)
                kind = f"{order}_{least}"
                yield Case(op, kind, "float32", work, (make,), without_rows=("scalar",))


def _make(op: str, order: str, shape: tuple[int, int, int, int]) -> Call:
    n_all, m, k, n = shape
    a = torch.randn(n_all, m, k) if order[0] == "n" else torch.randn(n_all, k, m).mT
    b = torch.randn(n_all, k, n) if order[1] == "n" else torch.randn(n_all, n, k).mT
    if op == "bmm":
        return lambda: torch.bmm(a, b)
    added = torch.randn(n_all, m, n)
    return lambda: torch.baddbmm(added, a, b)
