"""Rows found by indices and added up, as in embeddings and networks on graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pai_torchacc.bench.cases.case import Call, Case

NEAR = 1 << 18
"""Floats of a table that counts as near."""

WIDTHS = {"single": (1,), "narrow": (2, 8), "wide": (16, 64), "broad": (128, 256)}
ELEMENTS = {
    "single": (256, 4096, 131072),
    "narrow": (1024, 16384, 262144),
    "wide": (2048, 32768, 524288),
    "broad": (8192, 65536, 1048576),
}
ROWS_NEAR, ROWS_FAR = NEAR // 2, 16 * NEAR
"""Floats of the tables that are measured."""

ATEN = torch.ops.aten


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for op, make in MAKES.items():
        for far, floats in (("", ROWS_NEAR), ("_far", ROWS_FAR)):
            for kind, widths in WIDTHS.items():
                for work in ELEMENTS[kind]:
                    makes = tuple(
                        partial(make, floats // w, w, work // w) for w in widths
                    )
                    yield Case(
                        *(op, kind + far, "float32", work, makes),
                        without_rows=("scalar",),
                    )


def _index(n_rows: int, n: int) -> torch.Tensor:
    return torch.randint(0, n_rows, (n,))


def _select(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.randn(n_rows, width), _index(n_rows, n)
    return lambda: torch.index_select(table, 0, index)


def _indexed(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.randn(n_rows, width), _index(n_rows, n)
    return lambda: table[index]


def _gather(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.randn(n_rows, width), _index(n_rows, n)
    index = index[:, None].expand(n, width)
    return lambda: torch.gather(table, 0, index)


def _index_add(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.zeros(n_rows, width), _index(n_rows, n)
    x = torch.randn(n, width)
    return lambda: table.index_add_(0, index, x)


def _scatter_add(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.zeros(n_rows, width), _index(n_rows, n)
    x, index = torch.randn(n, width), index[:, None].expand(n, width)
    return lambda: table.scatter_add_(0, index, x)


def _index_put(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.zeros(n_rows, width), _index(n_rows, n)
    x = torch.randn(n, width)
    return lambda: table.index_put_((index,), x, accumulate=True)


def _embedding_backward(n_rows: int, width: int, n: int) -> Call:
    grad, index = torch.randn(n, width), _index(n_rows, n)
    return lambda: ATEN.embedding_dense_backward(grad, index, n_rows, -1, False)


def _bag_backward(n_rows: int, width: int, n: int) -> Call:
    """Four indices a bag."""
    n_bags = max(n // 4, 1)
    index, bag = _index(n_rows, n), (torch.arange(n) // 4).clamp(max=n_bags - 1)
    sizes, grad = torch.bincount(bag), torch.randn(n_bags, width)
    call = ATEN._embedding_bag_dense_backward
    return lambda: call(grad, index, bag, sizes, sizes, n_rows, False, 0, None)


MAKES = {
    "index_select": _select,
    "index": _indexed,
    "gather": _gather,
    "index_add": _index_add,
    "scatter_add": _scatter_add,
    "index_put": _index_put,
    "embedding_backward": _embedding_backward,
    "embedding_bag_backward": _bag_backward,
}
