"""torch.mm of any layout, at level close, and products of few rows in layers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Container
from functools import lru_cache
from pathlib import Path
from typing import Any

import contract
import multiplied
import pytest
import switching
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

OP = "mm"
ROWS = switching.runnable_rows(OP)
OF_ANY_SIZE = [row for row in ROWS if not row.startswith("stream")]
OF_ANY_LAYOUT = [row for row in OF_ANY_SIZE if not row.startswith(("dot", "turned"))]
LANES = (8, 16)
STREAMS = [row for row in ROWS if row.startswith("stream")]
SIZES = [
    (1, 100, 37),
    (3, 64, 64),
    (5, 1030, 40),
    (8, 333, 9),
    (13, 50, 70),
    (24, 2100, 33),
    (70, 77, 100),
    (7, 1, 300),
    (2, 1528, 64),
    (15, 4000, 64),
]
ORDERS = ["nn", "nt", "tn", "tt"]

OF_LAYERS = [r for r in switching.runnable_rows("linear_act") if r in ROWS]

rows = pytest.mark.parametrize("row", ROWS)


def matrix(n_rows: int, n_columns: int, order: str, dtype: torch.dtype) -> Tensor:
    if order == "n":
        return contract.draw(n_rows, n_columns, dtype=dtype)
    return contract.draw(n_columns, n_rows, dtype=dtype).t()


@lru_cache
def product(size: tuple[int, int, int], order: str) -> contract.Case:
    m, k, n = size

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        a = matrix(m, k, order[0], dtype).requires_grad_()
        b = matrix(k, n, order[1], dtype).requires_grad_()
        y = torch.mm(a, b)
        of_a, of_b = torch.autograd.grad(y, (a, b), contract.draw(m, n, dtype=dtype))
        return {"y": y, "a": of_a, "b": of_b}

    return case


def takes(row: str, size: tuple[int, int, int], order: str) -> bool:
    if row.startswith("stream"):
        return size[0] <= 8 and order[1] == "n"
    if row.startswith("turned"):
        return size[0] >= 16 and order == "nt"
    return not row.startswith("dot") or order == "nt"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@rows
def test_contract(row: str, size: tuple[int, int, int], order: str) -> None:
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        contract.hold(product(size, order))
        assert (hits.accelerated > 0) or not takes(row, size, order) or size[1] == 1


@pytest.mark.parametrize("row", [r for r in ROWS if r.startswith("dot")])
def test_few_columns_go_to_stock(row: str) -> None:
    a, b = torch.randn(5, 40), torch.randn(3, 40).t()
    stock = a @ b
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        assert torch.equal(a @ b, stock)
        assert hits.forwarded == {"shape": 1}


LAYOUTS: dict[str, tuple[Callable[[], tuple[Tensor, Tensor]], str | None]] = {
    "gaps between rows": (
        lambda: (torch.randn(9, 50)[:, :33], torch.randn(40, 21)[:33, 3:]),
        None,
    ),
    "gaps between columns": (
        lambda: (torch.randn(50, 9)[:33].t(), torch.randn(33, 20)),
        None,
    ),
    "offset": (lambda: (torch.randn(12, 33)[3:], torch.randn(33, 20)), None),
    "one row of many": (lambda: (torch.randn(9, 33)[4:5], torch.randn(33, 20)), None),
    "one column": (lambda: (torch.randn(9, 33), torch.randn(33, 20)[:, 7:8]), None),
    "expanded row": (
        lambda: (torch.randn(1, 33).expand(9, 33), torch.randn(33, 20)),
        "layout",
    ),
    "every other column": (
        lambda: (torch.randn(9, 66)[:, ::2], torch.randn(33, 20)),
        "layout",
    ),
    "overlapping": (
        lambda: (torch.randn(99).as_strided((9, 33), (3, 1)), torch.randn(33, 20)),
        "layout",
    ),
    "no rows": (lambda: (torch.randn(0, 33), torch.randn(33, 20)), "empty"),
    "no terms": (lambda: (torch.randn(9, 0), torch.randn(0, 20)), "empty"),
    "doubles": (
        lambda: (torch.randn(9, 33).double(), torch.ones(33, 2).double()),
        "dtype",
    ),
    "integers": (lambda: (torch.ones(9, 33).long(), torch.ones(33, 2).long()), "dtype"),
    "bfloat16": (
        lambda: (torch.ones(9, 33).bfloat16(), torch.ones(33, 2).bfloat16()),
        "dtype",
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("row", OF_ANY_LAYOUT)
def test_layouts(row: str, name: str) -> None:
    multiplied.hold(OP, row, torch.mm, *LAYOUTS[name])


@pytest.mark.parametrize(
    "shapes", [((9, 3), (4, 5)), ((9,), (9, 5)), ((2, 9, 3), (3, 5))], ids=str
)
def test_errors_are_stocks(shapes: Any) -> None:
    a, b = (torch.randn(shape) for shape in shapes)
    with pytest.raises(RuntimeError) as stock:
        torch.mm(a, b)
    with switching.accelerated(OP), pytest.raises(RuntimeError) as ours:
        torch.mm(a, b)
    assert str(ours.value) == str(stock.value)


@pytest.mark.skipif(not hasattr(Tensor, "rename"), reason="torch has no names now")
def test_names_of_dimensions() -> None:
    """Stock gives them to products, or complains."""
    a, b, bias = (
        contract.draw(*s, dtype=torch.float32) for s in ((24, 40), (40, 32), (32,))
    )

    def said(call: Callable[[], Tensor]) -> object:
        try:
            y = call()
        except RuntimeError as error:
            return str(error)
        return y.names, y.rename(None)

    calls = [
        lambda: torch.mm(a.rename("m", "k"), b.rename("k", "n")),
        lambda: torch.mm(a, b.rename("k", "n")),
        lambda: torch.mm(a.rename("m", "k"), b.rename("k", "m")),
        lambda: torch.addmm(bias, a.rename("m", "k"), b.rename("k", "n")),
        lambda: torch.addmm(bias.rename("n"), a, b),
        lambda: torch.addmm(bias.rename("z"), a, b.rename("k", "n")),
        lambda: a.rename("m", "k").sigmoid(),
    ]
    for call in calls:
        stock = said(call)
        with switching.accelerated():
            hits = [switching.hits(op) for op in (OP, "addmm", "sigmoid")]
            contract.exactly(said(call), stock)
            assert not any(h.accelerated for h in hits), hits


@pytest.mark.parametrize("row", OF_ANY_SIZE)
def test_numbers_that_are_none(row: str) -> None:
    """They reach the rows and columns that stock's reach, whatever the tiles."""
    a, b = torch.randn(23, 130), torch.randn(45, 130).t()
    a[3, 5], a[22, 129], a[10, 0] = torch.nan, torch.inf, -torch.inf
    b[7, 4], b[129, 44] = torch.inf, torch.nan
    stock = a @ b
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        ours = a @ b
        assert hits.accelerated == 1
    assert torch.equal(ours.isnan(), stock.isnan())
    torch.testing.assert_close(ours, stock, equal_nan=True)


@pytest.mark.parametrize("row", STREAMS)
def test_few_rows_of_large_matrices(row: str) -> None:
    a, b = torch.randn(8, 600), torch.randn(600, 5000)
    bias, before = torch.randn(5000), torch.get_num_threads()
    a[2, 300], b[7, 4999], b[0, 0] = torch.inf, torch.nan, -torch.inf
    stock = torch.addmm(bias, a, b)
    with switching.accelerated(OP, "addmm", row=row):
        hits = [switching.hits(op) for op in (OP, "addmm")]
        whole = torch.mm(a, b)
        assert torch.equal(torch.addmm(bias, a, b).isnan(), stock.isnan())
        torch.testing.assert_close(
            whole + bias, stock, rtol=1e-4, atol=1e-4, equal_nan=True
        )
        for n in (1, 2, 5, 7):
            torch.testing.assert_close(a[:n] @ b, whole[:n], rtol=0, atol=0,
                                       equal_nan=True)  # fmt: skip
        part = torch.mm(a[:, :600], b[:, 1000:3333])
        torch.testing.assert_close(
            part, whole[:, 1000:3333], rtol=0, atol=0, equal_nan=True
        )
        assert [h.accelerated for h in hits] == [6, 1]
        torch.mm(torch.randn(9, 600), b)
        torch.mm(a[:, :40], torch.randn(50, 40).t())
        assert hits[0].forwarded == {"shape": 1, "layout": 1}
        try:
            torch.set_num_threads(2)
            contract.exactly(torch.mm(a, b), whole)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("row", OF_ANY_SIZE)
def test_rows_depend_neither_on_others_nor_on_threads(row: str) -> None:
    a, b = torch.randn(70, 1500), torch.randn(300, 1500).t()
    before = torch.get_num_threads()
    with switching.accelerated(OP, row=row):
        whole = a @ b
        fewest = 16 if row.startswith("turned") else 1
        for n in (1, 2, 5, 8, 13, 16, 33, 49):
            assert n < fewest or torch.equal(a[:n] @ b, whole[:n])
        assert torch.equal(a @ b[:, :77], whole[:, :77])
        try:
            torch.set_num_threads(2)
            assert torch.equal(a @ b, whole)
        finally:
            torch.set_num_threads(before)


@pytest.mark.parametrize("row", [r for r in ROWS if r.startswith("turned")])
@pytest.mark.parametrize(
    ("m", "lanes"),
    [(8, ()), (16, LANES), (17, ()), (23, [8]), (24, [8]), (30, [16]), (32, [16]),
     (48, [16]), (49, ()), (64, ())],
)  # fmt: skip
def test_turned_products_fill_their_lanes(
    row: str, m: int, lanes: Container[int], tmp_path: Path
) -> None:
    """One panel of three vectors, of which few lanes are empty."""
    x, layer = torch.randn(m, 40), nn.Linear(40, 24)
    pays = (16 if "avx512" in row else 8) in lanes
    ops = (OP, "linear_act")
    with switching.named(tmp_path, ops, row), torch.no_grad():
        found = [switching.hits(op) for op in ops]
        x @ layer.weight.t()
        layer(x)
        assert [h.accelerated for h in found] == [pays, pays]


@pytest.mark.parametrize("row", [r for r in ROWS if r.startswith("packed")])
@pytest.mark.parametrize(
    ("k", "n", "threads"),
    [(256, 40, {1, 2}), (257, 255, set()), (300, 256, {2}), (40, 4, {1, 2})],
)
def test_packed_products_add_up_at_once_or_are_shared(
    row: str, k: int, n: int, threads: Container[int], tmp_path: Path
) -> None:
    """Of columns whose terms lie side by side, without an activation; not on AMD."""
    is_amd = _C.cpu()[0].startswith("AuthenticAMD")
    x, layer, across = torch.randn(24, k), nn.Linear(k, n), torch.randn(k, n)
    net = nn.Sequential(layer, nn.ReLU()).eval()
    before, ops = torch.get_num_threads(), (OP, "linear_act")
    try:
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            pays = is_amd or n_threads in threads
            with switching.named(tmp_path, ops, row), torch.no_grad():
                found = [switching.hits(op) for op in ops]
                x @ layer.weight.t()
                layer(x)
                assert [h.accelerated for h in found] == [pays, pays]
                x @ across
                net(x)
                assert [h.accelerated for h in found] == [pays + 1, pays + 1]
    finally:
        torch.set_num_threads(before)


@rows
def test_integers_are_exact(row: str) -> None:
    a = torch.randint(-9, 9, (17, 500)).float()
    b = torch.randint(-9, 9, (60, 500)).float().t()
    with switching.accelerated(OP, row=row):
        assert torch.equal(a @ b, (a.double() @ b.double()).float())


def test_transforms_and_modes_see_stocks_operators() -> None:
    a, b = torch.randn(4, 9, 33), torch.randn(33, 20)
    stock = [
        torch.vmap(lambda x: torch.mm(x, b))(a),
        torch.func.jvp(lambda x: torch.mm(x, b), (a[0],), (a[1],))[1],
        torch.func.grad(lambda x: torch.mm(x, b).sin().sum())(a[0]),
    ]
    with switching.accelerated(OP):
        ours = [
            torch.vmap(lambda x: torch.mm(x, b))(a),
            torch.func.jvp(lambda x: torch.mm(x, b), (a[0],), (a[1],))[1],
            torch.func.grad(lambda x: torch.mm(x, b).sin().sum())(a[0]),
        ]
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.mm(a[0], b).dtype is torch.bfloat16
        assert torch.mm(a[0].to("meta"), b.to("meta")).is_meta
    for o, s in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, s, rtol=1e-5, atol=1e-5)


def test_double_backward() -> None:
    def second(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        (g,) = torch.autograd.grad(torch.mm(a, b).sin().sum(), a, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (a, b))

    a = torch.randn(9, 33, requires_grad=True)
    b = torch.randn(33, 20, requires_grad=True)
    stock = second(a, b)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        ours = second(a, b)
        assert hits.accelerated > 3
    exact = second(*(t.detach().double().requires_grad_() for t in (a, b)))
    for name, o, s, e in zip("ab", ours, stock, exact, strict=True):
        contract.judge(name, [o], [s], [e])


def test_of_lowered_precision_stock_decides() -> None:
    before = torch.get_float32_matmul_precision()
    a, b = torch.randn(9, 33), torch.randn(33, 20)
    try:
        torch.set_float32_matmul_precision("medium")
        with switching.accelerated(OP):
            hits = switching.hits(OP)
            torch.mm(a, b)
            assert hits.forwarded == {"lowered precision": 1}
    finally:
        torch.set_float32_matmul_precision(before)


def test_toggling_in_the_middle_of_training() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(33, 40, bias=False), nn.Linear(40, 20, bias=False))
    other, x = copy.deepcopy(net), torch.randn(6, 33)

    def gradients(of: nn.Module) -> list[Tensor]:
        of(x).square().sum().backward()
        found = [p.grad.clone() for p in of.parameters()]
        of.zero_grad()
        return found

    stock = gradients(net)
    for _ in range(3):
        with switching.accelerated():
            y = other(x)
        y.square().sum().backward()
        other.zero_grad()
        with switching.accelerated():
            ours = gradients(other)
        for o, s in zip(ours, stock, strict=True):
            torch.testing.assert_close(o, s, rtol=1e-4, atol=1e-4)


def test_threads() -> None:
    a, b = torch.randn(40, 300), torch.randn(90, 300).t()
    with switching.accelerated(OP):
        whole = a @ b
        found = switching.in_threads(lambda: a @ b, n_threads=4)()
    assert all(torch.equal(y, whole) for y in found)


@pytest.mark.parametrize("row", OF_LAYERS)
@pytest.mark.parametrize("m", [1, 2, 5, 9, 16])
def test_layers_of_few_rows(m: int, row: str) -> None:
    torch.manual_seed(0)
    nets = [
        nn.Sequential(nn.Linear(k, n, bias=bias), act)
        for (k, n), bias, act in itertools.product(
            [(40, 30), (1100, 16)], [True, False], [nn.ReLU(), nn.GELU(), nn.Identity()]
        )
    ]
    inputs = [torch.randn(m, net[0].in_features) for net in nets]
    with torch.no_grad():
        stock = [net(x) for net, x in zip(nets, inputs, strict=True)]
        with switching.accelerated("linear_act", row=row):
            hits = switching.hits("linear_act")
            ours = [net(x) for net, x in zip(nets, inputs, strict=True)]
            assert hits.accelerated == len(nets)
        with ptac.enable("operator_fusion", verify=1):
            for net, x in zip(nets, inputs, strict=True):
                net(x)
    for o, s in zip(ours, stock, strict=True):
        torch.testing.assert_close(o, s, rtol=1e-5, atol=1e-5)
