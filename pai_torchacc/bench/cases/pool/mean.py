"""Means over pixels, as of global pooling, and over positions of sequences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import torch

from pai_torchacc.bench.cases.case import Call, Case

Size = tuple[int, ...]

ROWS: dict[str, tuple[Size, ...]] = {
    "rows_to_64": (
        (1, 16, 49),
        (1, 96, 49),
        (1, 480, 49),
        (1, 1152, 49),
        (8, 1000, 49),
        (32, 2048, 49),
    ),
    "rows_to_256": (
        (1, 4, 196),
        (1, 64, 196),
        (1, 480, 196),
        (8, 480, 196),
        (32, 1024, 196),
    ),
    "rows_longer": (
        (1, 4, 784),
        (1, 32, 784),
        (1, 32, 3136),
        (1, 96, 3136),
        (8, 96, 3136),
        (32, 256, 3136),
    ),
}
"""Sizes of rows that lie one behind the other, last dimension averaged."""

COLUMNS: dict[str, tuple[Size, ...]] = {
    "columns_narrow": ((1, 49, 16), (1, 784, 24), (1, 3136, 32), (8, 3136, 32)),
    "columns": (
        (1, 16, 64),
        (1, 49, 96),
        (1, 49, 1152),
        (1, 196, 480),
        (8, 196, 480),
        (8, 3136, 96),
        (32, 784, 512),
    ),
}
"""The same of columns: the middle dimension is averaged."""


def cases() -> Iterator[Case]:
    """Cases of both."""
    for kinds, dim in ((ROWS, 2), (COLUMNS, 1)):
        for kind, every in kinds.items():
            for sizes in every:
                make = partial(_mean, sizes, dim)
                yield Case("mean", kind, "float32", prod(sizes), (make,))


def _mean(sizes: Size, dim: int) -> Call:
    x = torch.randn(sizes)
    return lambda: x.mean(dim)
