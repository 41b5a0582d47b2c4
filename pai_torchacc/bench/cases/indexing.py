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
REDUCED = {
    "few": ((1, 2), ELEMENTS["single"]),
    "narrow": ((4, 8), ELEMENTS["narrow"]),
    "wide": (WIDTHS["wide"], ELEMENTS["wide"]),
    "broad": (WIDTHS["broad"], ELEMENTS["broad"]),
}
"""Of reductions: floats a row, and how many in all."""
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
    for op, put in (("index", False), ("index_put", True)):
        for kind, n_rows in (("elements", (1,)), ("columns", (16, 128))):
            for work in ELEMENTS["single"]:
                columns = tuple(partial(_columns, n, work // n, put) for n in n_rows)
                yield Case(
                    *(op, kind, "float32", work, columns), without_rows=("scalar",)
                )
    yield from _bags()
    yield from _reductions()


def _columns(n_rows: int, n: int, put: bool) -> Call:
    """Elements of matrices of 64 times as many, by two indices."""
    table, i, j = torch.zeros(n_rows, 64, n), _index(64, n), _index(n, n)
    if not put:
        return lambda: table[:, i, j] if n_rows > 1 else table[0, i, j]
    x = torch.randn(n_rows, n)
    table.requires_grad_()
    y = table[:, i, j] if n_rows > 1 else table[0][i, j]
    grad = x.view(y.shape)
    return lambda: torch.autograd.grad(y, table, grad, retain_graph=True)


def _reductions() -> Iterator[Case]:
    """Of both ways of what the table has; in tables that caches hold, and others."""
    for kind, (widths, works) in REDUCED.items():
        for work in works:
            sizes = [
                (floats // w, w, work // w)
                for w in widths
                for floats in (ROWS_NEAR, ROWS_FAR)
            ]
            fills = tuple(partial(_scatter, *s) for s in sizes)
            yield Case(
                "scatter", kind, "float32", work, fills, without_rows=("scalar",)
            )
            for name, how in (("sum", "sum"), ("mean", "mean"), ("most", "amax")):
                makes = tuple(
                    partial(_reduce, *s, how, has_self)
                    for s, has_self in zip(
                        sizes, (True, False, False, True), strict=False
                    )
                )
                yield Case(
                    *("scatter_reduce", f"{name}_{kind}", "float32", work, makes),
                    without_rows=("scalar",),
                    forwarded_to=("scatter", "scatter_add"),
                )


def _reduce(n_rows: int, width: int, n: int, how: str, has_self: bool) -> Call:
    table, index = torch.zeros(n_rows, width), _index(n_rows, n)
    x, index = torch.randn(n, width), index[:, None].expand(n, width)
    return lambda: table.scatter_reduce_(0, index, x, how, include_self=has_self)


def _scatter(n_rows: int, width: int, n: int) -> Call:
    table, index = torch.zeros(n_rows, width), _index(n_rows, n)
    index = index[:, None].expand(n, width)
    return lambda: table.scatter_(0, index, 1.0)


def _bags() -> Iterator[Case]:
    """Forward by all modes, and the gradient of the largest."""
    for mode, name in enumerate(("sum", "mean", "max")):
        for far, floats in (("", ROWS_NEAR), ("_far", ROWS_FAR)):
            for kind, widths in (("narrow", (1, 8)), ("wide", (16, 64))):
                for work in ELEMENTS[kind]:
                    makes = tuple(
                        partial(_bag, floats // w, w, work // w, mode) for w in widths
                    )
                    yield Case(
                        *("embedding_bag", f"{name}_{kind}{far}", "float32", work),
                        makes,
                        without_rows=("scalar",),
                    )
    for kind, floats in (("near", ROWS_NEAR), ("far", ROWS_FAR)):
        for work in ELEMENTS["wide"]:
            makes = tuple(
                partial(_bag_max_backward, floats // w, w, work // w) for w in (8, 64)
            )
            yield Case("embedding_bag_max_backward", kind, "float32", work, makes)


def _bag(n_rows: int, width: int, n: int, mode: int) -> Call:
    """Four indices a bag, as gradients are wanted."""
    table, index = torch.randn(n_rows, width), _index(n_rows, n)
    offsets = torch.arange(0, n, 4)
    return lambda: ATEN._embedding_bag(table, index, offsets, False, mode)


def _bag_max_backward(n_rows: int, width: int, n: int) -> Call:
    """One bag for each of n rows of the gradient."""
    grad, bag = torch.randn(n, width), torch.arange(n)
    largest, sizes = torch.randint(0, n_rows, (n, width)), torch.ones_like(bag)
    call = ATEN._embedding_bag_dense_backward
    return lambda: call(grad, bag % n_rows, bag, sizes, largest, n_rows, False, 2, None)


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
