"""torch.bmm and torch.baddbmm of any layout, at level close."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import contract
import multiplied
import pytest
import switching
import torch
from torch import Tensor

OP = "bmm"
SUM = "baddbmm"
ROWS = switching.runnable_rows(OP)
OF_ANY_SIZE = [row for row in ROWS if not row.startswith("stream")]
OF_ANY_LAYOUT = [row for row in OF_ANY_SIZE if not row.startswith("dot")]
SIZES = [
    (3, 1, 100, 37),
    (5, 8, 33, 9),
    (2, 13, 600, 70),
    (6, 64, 32, 64),
    (1, 40, 17, 33),
]
ORDERS = ["nn", "nt", "tn", "tt"]

rows = pytest.mark.parametrize("row", ROWS)


def matrices(n: int, n_rows: int, n_cols: int, order: str, dtype: Any) -> Tensor:
    if order == "n":
        return contract.draw(n, n_rows, n_cols, dtype=dtype)
    return contract.draw(n, n_cols, n_rows, dtype=dtype).mT


@lru_cache
def products(op: str, size: tuple[int, ...], order: str) -> contract.Case:
    n, m, k, columns = size

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        a = matrices(n, m, k, order[0], dtype).requires_grad_()
        b = matrices(n, k, columns, order[1], dtype).requires_grad_()
        added = contract.draw(n, 1, columns, dtype=dtype).requires_grad_()
        if op == OP:
            y = torch.bmm(a, b)
        else:
            y = torch.baddbmm(added, a, b, beta=-2, alpha=k**-0.5)
        grad = contract.draw(n, m, columns, dtype=dtype)
        of_a, of_b = torch.autograd.grad(y, (a, b), grad)
        return {"y": y, "a": of_a, "b": of_b}

    return case


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", [OP, SUM])
@rows
def test_contract(row: str, op: str, size: tuple[int, ...], order: str) -> None:
    with switching.accelerated(OP, SUM, row=row):
        hits = switching.hits(op)
        contract.hold(products(op, size, order))
        assert hits.accelerated > 0 or row not in OF_ANY_LAYOUT


Pair = tuple[Tensor, Tensor]

LAYOUTS: dict[str, tuple[Callable[[], Pair], str | None]] = {
    "heads of a projection": (
        lambda: (
            torch.randn(9, 4, 24).transpose(0, 1)[..., :8],
            torch.randn(7, 4, 24).permute(1, 2, 0)[:, 8:16],
        ),
        None,
    ),
    "one for all": (
        lambda: (torch.randn(1, 9, 8).expand(4, 9, 8), torch.randn(4, 8, 20)),
        None,
    ),
    "both one for all": (
        lambda: (
            torch.randn(9, 8).expand(4, 9, 8),
            torch.randn(20, 8).expand(4, 20, 8).mT,
        ),
        None,
    ),
    "overlapping batch": (
        lambda: (torch.randn(99).as_strided((4, 9, 8), (3, 8, 1)), torch.ones(4, 8, 6)),
        None,
    ),
    "one row": (lambda: (torch.randn(4, 1, 33), torch.randn(4, 33, 20)), None),
    "one column": (lambda: (torch.randn(4, 9, 33), torch.randn(4, 33, 1)), None),
    "one term": (lambda: (torch.randn(4, 9, 1), torch.randn(4, 1, 20)), None),
    "expanded rows": (
        lambda: (torch.randn(4, 1, 8).expand(4, 9, 8), torch.randn(4, 8, 20)),
        "layout",
    ),
    "every other column": (
        lambda: (torch.randn(4, 9, 16)[..., ::2], torch.randn(4, 8, 20)),
        "layout",
    ),
    "none": (lambda: (torch.randn(0, 9, 8), torch.randn(0, 8, 20)), "empty"),
    "no rows": (lambda: (torch.randn(4, 0, 8), torch.randn(4, 8, 20)), "empty"),
    "no terms": (lambda: (torch.randn(4, 9, 0), torch.randn(4, 0, 20)), "empty"),
    "doubles": (
        lambda: (torch.randn(4, 9, 8).double(), torch.randn(4, 8, 20).double()),
        "dtype",
    ),
    "bfloat16": (
        lambda: (torch.ones(4, 9, 8).bfloat16(), torch.ones(4, 8, 20).bfloat16()),
        "dtype",
    ),
    "integers": (
        lambda: (torch.ones(4, 9, 8).long(), torch.ones(4, 8, 2).long()),
        "dtype",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("row", OF_ANY_LAYOUT)
def test_layouts(row: str, name: str) -> None:
    multiplied.hold(OP, row, torch.bmm, *LAYOUTS[name])


def given() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 9, 20), torch.randn(4, 9, 33), torch.randn(4, 33, 20)


Call = Callable[[Tensor, Tensor, Tensor], Any]

ADDED: dict[str, tuple[Call, str | None]] = {
    "whole": (torch.baddbmm, None),
    "method": (lambda s, a, b: s.baddbmm(a, b, beta=0.5), None),
    "one for all": (lambda s, a, b: torch.baddbmm(s[:1], a, b, alpha=2), None),
    "a matrix": (lambda s, a, b: torch.baddbmm(s[0], a, b), None),
    "a row": (lambda s, a, b: torch.baddbmm(s[0, 0], a, b), None),
    "a row each": (lambda s, a, b: torch.baddbmm(s[:, :1], a, b), None),
    "expanded": (lambda s, a, b: torch.baddbmm(s[:1].expand(4, 9, 20), a, b), None),
    "gaps": (
        lambda s, a, b: torch.baddbmm(s.repeat(1, 1, 2)[..., :20], a, b),
        None,
    ),
    "beta 0": (lambda s, a, b: torch.baddbmm(s * torch.nan, a, b, beta=0), None),
    "one number": (lambda s, a, b: torch.baddbmm(s[:1, :1, :1], a, b), "layout"),
    "a column": (lambda s, a, b: torch.baddbmm(s[:, :, :1], a, b), "layout"),
    "turned": (
        lambda s, a, b: torch.baddbmm(s.mT.contiguous().mT, a, b),
        "layout",
    ),
    "alpha 0": (lambda s, a, b: torch.baddbmm(s, a, b, alpha=0), "argument"),
    "infinite": (
        lambda s, a, b: torch.baddbmm(s, a, b, beta=torch.inf),
        "argument",
    ),
    "doubles": (
        lambda s, a, b: torch.baddbmm(*(t.double() for t in (s, a, b))),
        "dtype",
    ),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added(name: str) -> None:
    call, reason = ADDED[name]
    tensors = given()
    stock = call(*tensors)
    with switching.accelerated(SUM):
        hits = switching.hits(SUM)
        ours = call(*tensors)
        assert hits.accelerated == (reason is None)
        assert hits.forwarded == ({reason: 1} if reason else {})
    assert ours.stride() == stock.stride()
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize(
    "shapes",
    [((4, 9, 3), (4, 5, 2)), ((4, 9, 3), (3, 3, 2)), ((9, 3), (3, 2))],
    ids=str,
)
@pytest.mark.parametrize("op", [OP, SUM])
def test_errors_are_stocks(op: str, shapes: Any) -> None:
    a, b = (torch.randn(shape) for shape in shapes)
    call = torch.bmm if op == OP else partial(torch.baddbmm, torch.ones(2))
    with pytest.raises((RuntimeError, IndexError)) as stock:
        call(a, b)
    with switching.accelerated(op), pytest.raises(stock.type) as ours:
        call(a, b)
    assert str(ours.value) == str(stock.value)


@pytest.mark.parametrize("row", OF_ANY_LAYOUT)
def test_numbers_that_are_none(row: str) -> None:
    _, a, b = given()
    a[1, 3, 5], a[2, 8, 32], b[3, 7, 4], b[0, 32, 19] = (
        *(torch.nan, torch.inf),
        *(-torch.inf, torch.nan),
    )
    stock = a @ b
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        ours = a @ b
        assert hits.accelerated == 1
    assert torch.equal(ours.isnan(), stock.isnan())
    torch.testing.assert_close(ours, stock, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", OF_ANY_SIZE)
def test_rows_depend_neither_on_others_nor_on_threads(row: str) -> None:
    a, b = torch.randn(7, 70, 300), torch.randn(7, 90, 300).mT
    before = torch.get_num_threads()
    with switching.accelerated(OP, "mm", row=row):
        whole = torch.bmm(a, b)
        for n in (1, 2, 5, 13):
            assert torch.equal(torch.bmm(a[:, :n], b), whole[:, :n])
        assert torch.equal(torch.bmm(a[2:3], b[2:3]), whole[2:3])
        assert torch.equal(torch.mm(a[4], b[4]), whole[4])
        try:
            torch.set_num_threads(2)
            assert torch.equal(torch.bmm(a, b), whole)
            assert torch.equal(torch.bmm(a[:3], b[:3]), whole[:3])
        finally:
            torch.set_num_threads(before)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Written out: [batch, heads, positions, size]."""
    scores = (q @ k.mT) * q.shape[-1] ** -0.5
    return scores.softmax(-1) @ v


def test_attention_that_is_written_out() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 24, 3, 4, 16)
    inputs = [t.transpose(1, 2).requires_grad_() for t in x.unbind(2)]
    stock = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        ours = torch.autograd.grad(attention(*inputs).square().sum(), inputs)
        assert hits.accelerated == 6
    for o, s in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, s, rtol=1e-4, atol=1e-5)


def test_transforms_and_modes_see_stocks_operators() -> None:
    _, a, b = given()

    def results() -> list[Tensor]:
        return [
            torch.vmap(torch.mm)(a, b),
            torch.func.jvp(lambda x: torch.bmm(x, b), (a,), (a,))[1],
            torch.func.grad(lambda x: torch.bmm(x, b).sin().sum())(a),
        ]

    stock = results()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        ours = results()
        assert hits.accelerated > 0
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.bmm(a, b).dtype is torch.bfloat16
        assert torch.bmm(a.to("meta"), b.to("meta")).is_meta
    for o, s in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, s, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("op", [OP, SUM])
def test_double_backward(op: str) -> None:
    s, a, b = (t.requires_grad_() for t in given())

    def second() -> tuple[Tensor, ...]:
        y = torch.bmm(a, b) if op == OP else torch.baddbmm(s, a, b, alpha=0.5)
        (g,) = torch.autograd.grad(y.sin().sum(), a, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (a, b))

    stock = second()
    with switching.accelerated(OP, SUM):
        hits = [switching.hits(name) for name in (OP, SUM)]
        ours = second()
        assert sum(h.accelerated for h in hits) > 3
    for o, t in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, t, rtol=1e-4, atol=1e-4)


def test_of_lowered_precision_stock_decides() -> None:
    before = torch.get_float32_matmul_precision()
    _, a, b = given()
    try:
        torch.set_float32_matmul_precision("medium")
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            torch.bmm(a, b)
            assert hits.forwarded == {"lowered precision": 1}
    finally:
        torch.set_float32_matmul_precision(before)


def test_boxed_calls() -> None:
    tensors = given()
    stock = torch.baddbmm(*tensors)
    with switching.accelerated(OP, SUM):
        ours = torch.ops.aten.baddbmm(*tensors)
        of_two = torch.ops.aten.bmm(*tensors[1:])
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(of_two, stock - tensors[0], rtol=1e-4, atol=1e-4)


def test_toggling_while_in_use() -> None:
    s, a, b = given()
    net = copy.deepcopy(torch.nn.Parameter(b))
    stock, found = torch.baddbmm(s, a, b), []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            found.append((s + torch.bmm(a, net.detach()) - stock).abs().max())
            found.append((torch.baddbmm(s, a, net) - stock).abs().max().detach())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with switching.accelerated(OP, SUM):
            torch.baddbmm(s, a, b)
    done.set()
    for thread in threads:
        thread.join()
    assert len(found) > 20
    assert max(found) < 1e-4
    assert torch.equal(torch.baddbmm(s, a, b), stock)
