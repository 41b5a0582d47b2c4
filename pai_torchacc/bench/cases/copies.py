"""Copies that models make: matrices, heads and images turned, pieces put elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

import torch

from pai_torchacc.bench.cases.case import FLOATS, Call, Case

ELEMENTS = tuple(1 << power for power in (11, 14, 17, 20, 22))

RUNS = {
    "short_runs": (24, 48, 112),
    "runs": (256, 392),
    "long_runs": (3136,),
}
"""Bytes that stay together."""

BESIDE = {
    "woven": ((1, 1), (1, 1, 1), (1, 1, 1, 1)),
    "woven_many": ((1,) * 5, (1,) * 8),
    "short_runs": ((2, 2), (4, 1), (3, 7, 7)),
    "runs": ((16, 1), (32, 32), (40, 8, 16)),
    "long_runs": ((64, 64), (256, 256), (392, 784)),
}
"""Elements of the runs that are put beside each other."""
PARTS = {"short_runs": "short_parts", "runs": "parts", "long_runs": "long_parts"}
"""The same where they are parts of longer rows."""

SIZE = {"float32": 4, "bfloat16": 2, "float64": 8}


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for dtype, work in ((dtype, work) for dtype in FLOATS for work in ELEMENTS):
        turned = [partial(_turned, sizes, dtype) for sizes in _planes(work)]
        yield _case("turned", dtype, work, turned)
        narrow = (2, 3) if dtype == "float64" else (3, 7)
        for kind in ("to_narrow", "from_narrow"):
            makes = [
                partial(_turned, sizes, dtype)
                for n in narrow
                for sizes in _narrow_planes(work, n, to=kind == "to_narrow")
            ]
            yield _case(kind, dtype, work, makes)
        for kind, lengths in RUNS.items():
            makes = [
                partial(_heads_first, work, n // SIZE[dtype], dtype) for n in lengths
            ]
            yield _case(kind, dtype, work, makes)

    for work, (kind, runs) in product(ELEMENTS, BESIDE.items()):
        whole = tuple(partial(_beside, work, widths, False) for widths in runs)
        yield Case("cat", kind, "float32", work, whole)
        if kind in PARTS:
            parts = tuple(partial(_beside, work, widths, True) for widths in runs)
            yield Case("cat", PARTS[kind], "float32", work, parts)


def _case(kind: str, dtype: str, work: int, makes: list[partial[Call]]) -> Case:
    return Case("copy", kind, dtype, work, tuple(makes), without_rows=("scalar",))


def _planes(work: int) -> list[tuple[int, ...]]:
    """Planes of so many elements: batch, rows and columns of the input."""
    side = 1 << (work.bit_length() - 1) // 2
    odd = round(work**0.5) | 1
    return [
        (1, side, work // side),
        (1, odd, odd),
        (1, 9, work // 9),
        (1, work // 9, 9),
        (work // 81, 9, 9),
        (max(1, work // (56 * 56 * 64)), 64, min(56 * 56, work // 64)),
        (max(1, work // (56 * 56 * 64)), min(56 * 56, work // 64), 64),
    ]


def _narrow_planes(work: int, n: int, *, to: bool) -> list[tuple[int, ...]]:
    """One plane and many short ones, n wide where they are narrow."""
    found = []
    for planes in (1, max(1, work // (n * 64))):
        wide = work // (n * planes)
        found.append((planes, n, wide) if to else (planes, wide, n))
    return found


def _turned(sizes: tuple[int, ...], dtype: str) -> Call:
    x = torch.randn(sizes).to(FLOATS[dtype]).mT
    return x.contiguous


def _beside(work: int, widths: tuple[int, ...], are_parts: bool) -> Call:
    n = max(2, work // sum(widths))
    more = 8 if are_parts else 0
    tensors = [torch.randn(n, width + more)[:, :width] for width in widths]
    return partial(torch.cat, tensors, 1)


def _heads_first(work: int, run: int, dtype: str) -> Call:
    positions = max(2, work // (8 * run))
    x = torch.randn(positions, 8, run).to(FLOATS[dtype]).transpose(0, 1)
    return x.contiguous
