"""Rows found by indices and added up, behind torch's functions and modules."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial

import contract
import indexed
import pytest
import switching
import torch
import torch.nn.functional as F
from indexed import expanded, floats
from torch import Tensor, nn

import pai_torchacc as ptac

SELECTS = ("index_select", "index", "gather")
ADDS = ("index_add", "scatter_add", "index_put")
BACKWARDS = ("embedding_backward", "embedding_bag_backward")
OPS = (*SELECTS, *ADDS, *BACKWARDS)

pytestmark = pytest.mark.usefixtures("one_thread")
"""With more, stock adds up in index_put_ in the order in which threads come."""

ATEN = torch.ops.aten

rows = pytest.mark.parametrize("row", switching.runnable_rows("index_select"))
integers = pytest.mark.parametrize("dtype", [torch.int64, torch.int32])


def indices(n_rows: int, *sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """With duplicates wherever there are more of them than rows."""
    torch.manual_seed(n_rows)
    return torch.randint(0, n_rows, sizes, dtype=dtype)


SIZES = [(1, 1, 1), (7, 1, 50), (40, 17, 300), (300, 64, 700)]
"""Rows of the table, floats a row, indices."""


def lookups(table: Tensor, index: Tensor) -> list[Tensor]:
    negative = index - len(table) * (index % 2)
    return [
        torch.index_select(table, 0, index),
        torch.index_select(table, -table.dim(), index),
        table[negative],
        table[negative[None]],
        F.embedding(index, table) if table.dim() == 2 else table[index],
    ]


@pytest.mark.parametrize("sizes", SIZES)
@integers
@rows
def test_rows_are_stocks(
    row: str, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    n_rows, width, n = sizes
    index = indices(n_rows, n, dtype=dtype)
    tables = [
        floats(n_rows, width),
        floats(n_rows, width + 3)[:, 1 : width + 1],
        floats(2 * n_rows, width)[::2],
        floats(n_rows, width, 2),
        floats(n_rows, width)[:, 0].contiguous(),
        floats(n_rows, width)[:, 0],
        floats(1, width).expand(n_rows, width),
    ]
    ways = (index, torch.stack([index, index], 1)[:, 0])
    with switching.accelerated(*OPS, row=row):
        for table, at in itertools.product(tables, ways):
            with ptac.disabled():
                stock = lookups(table, at)
            hits = [switching.hits(op) for op in ("index_select", "index")]
            contract.exactly(lookups(table, at), stock)
            assert sum(h.accelerated for h in hits) == 5, hits


@rows
def test_results_lie_as_stocks(row: str) -> None:
    """As the index does: programs look at it through views."""
    i = indices(20, 5, 7)
    whole = indices(20, 3, 4, 5)
    served = [i, i[None], i[:, None], i[1:], whole, i[0], i[:, 0]]
    others = [i.t(), i[:1].t(), whole.permute(2, 0, 1), whole.mT, i[0].unfold(0, 5, 1)]
    tables = [floats(20, 8), floats(20, 1), floats(20), floats(1, 8).expand(20, 8)]
    for table, at in itertools.product(tables, served + others):
        stock = table[at]
        with switching.accelerated("index", row=row):
            hits = switching.hits("index")
            contract.exactly(table[at], stock)
            is_served = any(at is index for index in served)
            assert hits.accelerated == is_served, (hits, at.stride())
            assert hits.forwarded == ({} if is_served else {"layout": 1})
    with switching.accelerated("index", row=row):
        assert tables[0][i.t()].transpose(0, 1).view(-1).numel() == 280


@pytest.mark.parametrize("sizes", [(5,), (4, 9), (6, 5, 7), (2, 3, 4, 5), (1, 1, 9)])
@integers
@rows
def test_columns_have_stocks_bits(
    row: str, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    """One index for each dimension behind some, negative ones and duplicates too."""
    table = floats(*sizes)
    for n_before in range(len(sizes) - (len(sizes) > 1)):
        every = [slice(None)] * n_before
        at = [indices(n, 23, dtype=dtype) for n in sizes[n_before:]]
        at = [i - n * (i % 2) for i, n in zip(at, sizes[n_before:], strict=True)]

        def run(where: tuple[object, ...]) -> list[Tensor]:
            leaf = table.clone().requires_grad_()
            y = leaf[where]
            grad = torch.linspace(-1, 1, y.numel()).view(y.shape)
            return [y.detach(), *torch.autograd.grad(y, leaf, grad)]

        stock = run((*every, *at))
        with switching.accelerated(*OPS, row=row):
            hits = [switching.hits(op) for op in ("index", "index_put")]
            contract.exactly(run((*every, *at)), stock)
            assert [h.accelerated for h in hits] == [1, 1], hits


def test_columns_that_are_stocks() -> None:
    x, i, j = floats(4, 6, 5), indices(6, 9), indices(5, 9)
    calls: list[Callable[[], object]] = [
        lambda: x[:, i + 1, j],
        lambda: x[:, i, j - 6],
        lambda: x[:, i[:1], j],
        lambda: x[:, i[:5], j],
        lambda: x[:, i[:, None], j],
        lambda: x[:, i.view(3, 3), j.view(3, 3)],
        lambda: x[:, i[::2], j[::2]],
        lambda: x[:, i],
        lambda: x[i[:4] % 4, :, j[:4]],
        lambda: x.transpose(1, 2)[:, j, i],
        lambda: x[:, i[:0], j[:0]],
        lambda: x.double()[:, i, j],
        lambda: x[:, torch.ones(6, 5, dtype=torch.bool)],
        lambda: x.clone().index_put_((i % 4, i, j), torch.ones(9)),
        lambda: x.clone().index_put_((i % 4, i, j), torch.ones(()), accumulate=True),
    ]
    indexed.hold_refused(("index", "index_put"), calls)


WRITTEN_MEANWHILE = """
import ctypes, threading, time
import torch, switching
row, n, is_done = "{row}", 100000, False
torch.set_num_threads(1)
index = torch.randint(0, 100, (n,))
numbers = (ctypes.c_int64 * n).from_address(index.data_ptr())
tables = [torch.zeros(100), torch.zeros(100, 8)]

def write():
    while not is_done:
        numbers[n // 2] = 1 << 40
        numbers[n // 2] = 3

def wide(table):
    return index.view(-1, *[1] * (table.dim() - 1)).expand(n, *table.shape[1:])

calls = [
    lambda table, x: table.index_add_(0, index, x),
    lambda table, x: table.index_put_((index,), x, accumulate=True),
    lambda table, x: table.scatter_add_(0, wide(table), x),
    lambda table, x: torch.index_select(table, 0, index),
    lambda table, x: table[index],
]
writer = threading.Thread(target=write, daemon=True)
writer.start()
names = "index_add", "index_put", "scatter_add", "index_select", "index"
with switching.accelerated(*names, row=row):
    for (name, call), table in ((c, t) for c in zip(names, calls) for t in tables):
        hits, x = switching.hits(name), torch.ones(n, *table.shape[1:])
        end = time.monotonic() + 0.15
        while time.monotonic() < end or not hits.accelerated + hits.failed:
            try:
                call(table, x)
            except (IndexError, RuntimeError):
                pass
        assert not hits.failed, (name, hits)
is_done = True
writer.join()
"""


@rows
def test_indices_that_change_meanwhile_crash_nothing(row: str) -> None:
    """Between the look at all of them and the sums, too."""
    switching.python(WRITTEN_MEANWHILE.format(row=row))


@pytest.mark.parametrize("sizes", SIZES)
@rows
def test_gather_of_rows(row: str, sizes: tuple[int, int, int]) -> None:
    n_rows, width, n = sizes
    at = expanded(indices(n_rows, n), width)
    table = floats(n_rows, width).requires_grad_()
    y = torch.gather(table, 0, at)
    (grad,) = torch.autograd.grad(y, table, torch.cos(y.detach().nan_to_num(0)))
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in ("gather", "scatter_add")]
        ours = torch.gather(table, 0, at)
        contract.exactly(ours, y)
        back = torch.autograd.grad(ours, table, torch.cos(y.detach().nan_to_num(0)))
        contract.exactly(back, (grad,))
        assert [h.accelerated for h in hits] == [1, 1]


def additions(table: Tensor, index: Tensor, x: Tensor) -> list[Tensor]:
    """All ways to add up, each on a table of its own that looks like this one."""
    wide = expanded(index, x.shape[1])
    negative = index - len(table) * (index % 2)

    def inside(add: Callable[[Tensor], Tensor]) -> Tensor:
        mine = torch.empty_strided(table.shape, table.stride()).copy_(table)
        assert add(mine) is mine
        assert mine._version == 2
        return mine

    return [
        torch.index_add(table, 0, index, x),
        torch.index_add(table, -2, index, x, alpha=1.0),
        inside(lambda y: y.index_add_(0, index, x)),
        torch.scatter_add(table, 0, wide, x),
        inside(lambda y: y.scatter_add_(0, wide, x)),
        inside(lambda y: y.index_put_((negative,), x, accumulate=True)),
    ]


CALLS_OF_ADDITIONS = {"index_add": 3, "scatter_add": 2, "index_put": 1}


@pytest.mark.parametrize("sizes", SIZES)
@integers
@rows
def test_sums_have_stocks_bits(
    row: str, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    n_rows, width, n = sizes
    index = indices(n_rows, n, dtype=dtype)
    tables = indexed.tables(floats, n_rows, width)
    dense, *others = indexed.terms(floats, n, width)
    with switching.accelerated(*OPS, row=row):
        for table, x in itertools.product(tables, (dense / 2, *others)):
            indexed.hold_bits(partial(additions, table, index, x), CALLS_OF_ADDITIONS)


@pytest.mark.parametrize("op", ["index_add", "scatter_add"])
def test_threads_do_not_change_bits(op: str) -> None:
    index, x = indices(500, 9000), floats(9000, 32).nan_to_num(1)
    at = index if op == "index_add" else expanded(index, 32)
    table, rare = torch.zeros(500, 32), torch.zeros(40000, 32)

    def run() -> list[Tensor]:
        sums = [getattr(torch, op)(t, 0, at, x) for t in (table, rare)]
        grad = ATEN.embedding_dense_backward(x, index, 500, 7, False)
        return [*sums, grad, rare[index.long()]]

    indexed.hold_threads(OPS, run, {op: 2, "embedding_backward": 1, "index": 1})
    assert not rare.any()


@integers
@pytest.mark.parametrize("padding", [None, 0, 5])
@pytest.mark.parametrize("width", [1, 7, 32])
@rows
def test_gradients_of_embeddings(
    row: str, width: int, padding: int | None, dtype: torch.dtype
) -> None:
    index = indices(60, 40, 25, dtype=dtype)
    table, grad = floats(60, width), floats(40, 25, width)

    def run() -> list[Tensor]:
        weight = table.clone().requires_grad_()
        y = F.embedding(index, weight, padding)
        bags = F.embedding_bag(index, weight, mode="sum", padding_idx=padding)
        found = torch.autograd.grad(y, weight, grad)
        return [*found, *torch.autograd.grad(bags, weight, grad[:, 0])]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in BACKWARDS]
        contract.exactly(run(), stock)
        assert [h.accelerated for h in hits] == [1, 1], hits


def test_gradients_of_lookups() -> None:
    table, index = floats(80, 24), indices(80, 30, 9)

    def run() -> list[Tensor]:
        leaf = table.clone().requires_grad_()
        grad = torch.linspace(-1, 1, 24).expand(30, 9, 24)
        found = torch.autograd.grad(leaf[index], leaf, grad)
        flat = torch.index_select(leaf, 0, index.view(-1))
        return [*found, *torch.autograd.grad(flat, leaf, grad.reshape(-1, 24))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in ("index_put", "index_add")]
        contract.exactly(run(), stock)
        assert [h.accelerated for h in hits] == [1, 1], hits


def refused() -> list[Callable[[], object]]:
    """Calls that are stock's, among them those that it answers with an error."""
    x, index, wrong = floats(6, 4), indices(6, 9), torch.tensor([0, 6, 2])
    wide = expanded(index, 4)
    zeros = partial(torch.zeros, 6, 4)
    calls: list[Callable[[], object]] = [
        lambda call=call, at=at: call(at)
        for at in (wrong, torch.tensor([1, -7]), wrong.int(), torch.tensor([2**40]))
        for call in (
            lambda at: x[at],
            lambda at: torch.index_select(x, 0, at),
            lambda at: F.embedding(at, x),
            lambda at: torch.gather(x, 0, at[:, None].expand(-1, 4)),
            lambda at: zeros().index_add_(0, at, x[: len(at)]),
            lambda at: torch.index_add(zeros(), 0, at, x[: len(at)]),
            lambda at: zeros().scatter_add_(0, at[:, None].expand(-1, 4), x),
            lambda at: zeros().index_put_((at,), x[: len(at)], accumulate=True),
        )
    ]
    return [
        *calls,
        lambda: torch.index_select(x, 0, torch.tensor([-1])),
        lambda: torch.index_select(x, 1, indices(4, 9)),
        lambda: torch.index_select(x.t(), 0, indices(4, 9)),
        lambda: x[index.bool()[:6]],
        lambda: x[index[:0]],
        lambda: x.double()[index],
        lambda: x.bfloat16()[index],
        lambda: torch.gather(x, 1, indices(4, 6, 2)),
        lambda: torch.gather(x, 0, wide.contiguous()),
        lambda: zeros().index_add_(0, index, x[:1].expand(9, 4), alpha=2),
        lambda: zeros().index_add_(0, index, x[:1].expand(9, 4), alpha=0.5),
        lambda: zeros().index_add_(1, indices(4, 3), torch.ones(6, 3)),
        lambda: torch.zeros(6).index_add_(0, torch.tensor(2), torch.ones(1)),
        lambda: x.clone().index_add_(0, index[:6], x.double()),
        lambda: zeros().scatter_add_(0, wide[:, :2], torch.ones(9, 4)),
        lambda: zeros().scatter_add_(0, wide.contiguous(), torch.ones(9, 4)),
        lambda: zeros().index_put_((index,), torch.ones(4), accumulate=True),
        lambda: zeros().index_put_((indices(6, 6).unique(),), torch.tensor(1.0)),
        lambda: ATEN.embedding_dense_backward(torch.ones(9, 4), index, 6, -1, True),
        lambda: ATEN.embedding_dense_backward(torch.ones(9, 4), index, 3, -1, False),
    ]


def test_what_is_stocks() -> None:
    indexed.hold_refused(OPS, refused())


def test_memory_that_overlaps_is_left_to_stock() -> None:
    index = torch.tensor([0, 2, 1])
    calls = [
        lambda y: y.index_add_(0, index, y[:3]),
        lambda y: y.index_put_((index,), y[1:4], accumulate=True),
        lambda y: y[:1].expand(5, 3).index_add_(0, index, torch.ones(3, 3)),
    ]
    indexed.hold_overlapping(OPS, calls)


def test_failures_in_place_change_nothing() -> None:
    y, at = floats(40, 8), indices(40, 600)
    at[599] = 40
    before = y.clone()
    with switching.accelerated(*OPS), pytest.raises(IndexError):
        y.index_put_((at,), torch.ones(600, 8), accumulate=True)
    with pytest.raises(IndexError):
        before.index_put_((at,), torch.ones(600, 8), accumulate=True)
    contract.exactly(y, before)


def test_shadow_checks_of_calls_in_place() -> None:
    table, at, x = torch.zeros(30, 8), indices(30, 50), torch.randn(50, 8)
    run = partial(additions, table, at, x)
    indexed.hold_shadow_checks(OPS, run, CALLS_OF_ADDITIONS)


def test_derivatives_and_transforms() -> None:
    x, at = torch.linspace(-3, 3, 120).view(2, 20, 3), indices(20, 31)

    def square(table: Tensor) -> Tensor:
        return table[at].square().sum()

    def sums(table: Tensor) -> Tensor:
        return torch.zeros(20, 3).index_add(0, at, table[at]).square().sum()

    def all_of_them() -> list[Tensor]:
        found = [torch.func.vmap(torch.func.grad(f))(x) for f in (square, sums)]
        leaf = x[0].clone().requires_grad_()
        y = torch.index_select(leaf, 0, at).pow(3)
        (grad,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        found.append(grad.detach())
        return [*found, *torch.autograd.grad(grad.square().sum(), leaf)]

    stock = all_of_them()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in ("index_select", "index_add")]
        contract.exactly(all_of_them(), stock)
        assert all(h.accelerated for h in hits), hits


class Graph(nn.Module):
    """Messages from nodes to nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(50, 16), nn.Linear(16, 16)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        """One step."""
        source, target = edges
        messages = self.layer(self.table(nodes))[source]
        return messages.new_zeros(len(nodes), 16).index_add(0, target, messages)


def test_modules_copies_autocast_threads_and_toggling() -> None:
    model, nodes, edges = Graph(), indices(50, 60), indices(60, 2, 400)
    stock = model(nodes, edges)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(nodes, edges)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in ("index_select", "index", "index_add")]
        contract.exactly(copy.deepcopy(model)(nodes, edges), stock)
        assert [h.accelerated for h in hits] == [1, 1, 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(nodes, edges), stock_cast)
        with ptac.disabled():
            contract.exactly(model(nodes, edges), stock)
        results = switching.in_threads(lambda: model(nodes, edges))
    for y in results():
        contract.exactly(y, stock)


@pytest.mark.parametrize("op", ["index", "index_put", "index_add"])
def test_an_operator_without_a_registration_comes_alone(op: str) -> None:
    """Its C++ calls are ours, those that torch boxes are stock's, and all go again."""
    table, at = floats(9, 4), indices(9, 20)
    stock = table[at]
    with switching.accelerated(op):
        assert ptac.is_enabled("operator_fusion")
        assert op in ptac._C.override_installed()
        contract.exactly(table[at], stock)
        contract.exactly(ATEN.index.Tensor(table, [at]), stock)
    assert not ptac._C.override_installed()
    hits = switching.hits("index")
    contract.exactly(table[at], stock)
    assert hits.accelerated == 0 and not hits.forwarded
