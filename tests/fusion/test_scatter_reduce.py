"""Rows reduced by an index that is expanded over them, as networks on graphs do."""

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
from indexed import expanded, floats
from torch import Tensor, nn

import pai_torchacc as ptac

OPS = ("scatter_reduce", "scatter")
HOWS = ("sum", "mean", "amax", "amin")
SIZES = [(1, 1, 1), (7, 1, 50), (40, 8, 300), (90, 17, 300), (300, 64, 700)]
"""Rows of the table, floats a row, indices; from 16 floats on stock sorts indices."""

pytestmark = pytest.mark.usefixtures("one_thread")

rows = pytest.mark.parametrize("row", switching.runnable_rows("scatter_reduce"))


def zeros_and_others(*sizes: int) -> Tensor:
    """Zeros of both signs, few other numbers: many terms are the same."""
    torch.manual_seed(sum(sizes))
    return torch.randint(-2, 3, sizes).float() * 0.5 * torch.randn(sizes).sign()


def index_of(n_rows: int, n: int) -> Tensor:
    torch.manual_seed(n_rows)
    return torch.randint(0, max(n_rows * 2 // 3, 1), (n,))


def reductions(table: Tensor, index: Tensor, x: Tensor) -> list[Tensor]:
    found = []
    for how, has_self in itertools.product(HOWS, (True, False)):
        found.append(table.scatter_reduce(0, index, x, how, include_self=has_self))
        y = table.clone(memory_format=torch.preserve_format)
        found.append(y.scatter_reduce_(0, index, x, how, include_self=has_self))
    return found


@pytest.mark.parametrize("draw", [floats, zeros_and_others])
@pytest.mark.parametrize("sizes", SIZES)
@rows
def test_rows_have_stocks_bits(
    row: str, sizes: tuple[int, int, int], draw: Callable[..., Tensor]
) -> None:
    n_rows, width, n = sizes
    index = expanded(index_of(n_rows, n), width)
    tables, terms = indexed.tables(draw, n_rows, width), indexed.terms(draw, n, width)
    with switching.accelerated(*OPS, row=row):
        for table, x in itertools.product(tables, terms):
            run = partial(reductions, table, index, x)
            indexed.hold_bits(run, {"scatter_reduce": 16})


@rows
def test_more_dimensions_and_one(row: str) -> None:
    at = index_of(30, 80)
    cases = [
        (floats(30), at, floats(80)),
        (floats(30, 4, 8), expanded(at, 4, 8), floats(80, 4, 8)),
        (floats(30, 1), at[:, None], floats(80, 1)),
        (floats(30, 1, 16), at.view(-1, 1, 1).expand(-1, 1, 16), floats(80, 1, 16)),
        (floats(30, 20), at[:1].view(1, 1).expand(1, 20), floats(1, 20)),
    ]
    with switching.accelerated(*OPS, row=row):
        for case in cases:
            indexed.hold_bits(partial(reductions, *case), {"scatter_reduce": 16})


@rows
@pytest.mark.parametrize("value", [0, -3, 2.5, 0.1, -0.0, float("nan")])
def test_one_value_is_scattered(row: str, value: float) -> None:
    def run() -> list[Tensor]:
        found = []
        for table in (
            floats(50, 24),
            floats(50, 26)[:, 1:-1],
            floats(50),
            floats(50, 3),
        ):
            at = expanded(index_of(50, 90), *table.shape[1:])
            found.append(table.scatter(0, at, value))
            found.append(table.clone().scatter_(0, at, value))
        return found

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("scatter")
        contract.exactly(run(), stock)
        assert hits.accelerated == 8, hits


def test_threads_do_not_change_bits() -> None:
    at, x = index_of(500, 9000), floats(9000, 32).nan_to_num(1)
    wide = expanded(at, 32)
    table = floats(500, 32)
    indexed.hold_threads(
        OPS,
        lambda: [*reductions(table, wide, x), table.scatter(0, wide, 0)],
        {"scatter_reduce": 16, "scatter": 1},
    )


@pytest.mark.parametrize("width", [1, 8, 24])
@pytest.mark.parametrize("has_self", [True, False])
@pytest.mark.parametrize("how", HOWS)
def test_gradients(how: str, has_self: bool, width: int) -> None:
    at = expanded(index_of(40, 200), width)
    table, x, grad = zeros_and_others(40, width), zeros_and_others(200, width), None

    def run() -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (table, x)]
        y = leaves[0].scatter_reduce(0, at, leaves[1], how, include_self=has_self)
        grads = torch.autograd.grad(
            y.square().sum(), leaves, grad, create_graph=how in ("sum", "mean")
        )
        found = [y.detach(), *(g.detach() for g in grads)]
        if how in ("sum", "mean"):
            total = sum(g.square().sum() for g in grads)
            found += torch.autograd.grad(total, leaves)
        return found

    stock = run()
    with switching.accelerated(*OPS, "gather", "scatter_add"):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(run(), stock)
        assert hits[0].accelerated >= 1
        assert (hits[1].accelerated > 0) == (not has_self), hits


def test_what_is_stocks() -> None:
    at, wide = index_of(6, 9), expanded(index_of(6, 9), 4)
    table, x = floats(6, 4), floats(9, 4)
    calls: list[Callable[[], object]] = [
        lambda: table.scatter_reduce(0, wide, x, "prod"),
        lambda: table.scatter_reduce(0, wide, x, "max"),
        lambda: table.scatter_reduce(0, wide, x.double(), "sum"),
        lambda: table.double().scatter_reduce(0, wide, x.double(), "amax"),
        lambda: table.bfloat16().scatter_reduce(0, wide, x.bfloat16(), "mean"),
        lambda: table.scatter_reduce(1, wide[:6] % 4, x, "sum"),
        lambda: table.scatter_reduce(0, wide.contiguous(), x, "mean"),
        lambda: table.scatter_reduce(0, wide, torch.cat([x, x]), "amax"),
        lambda: table.scatter_reduce(0, wide + 100, x, "amin"),
        lambda: table.scatter_reduce(0, expanded(at - 9, 4), x, "amin"),
        lambda: table.scatter_reduce(0, wide[:0], x[:0], "sum"),
        lambda: torch.empty(0, 4).scatter_reduce(0, wide[:0], x[:0], "sum"),
        lambda: table.scatter_reduce(0, wide.float(), x, "sum"),
        lambda: table.scatter(0, wide, x),
        lambda: table.scatter(0, wide, float("inf")),
        lambda: table.scatter(0, wide, 1 << 60),
        lambda: table.scatter(0, wide, 1, reduce="add"),
        lambda: table.scatter(0, expanded(at + 6, 4), 0.0),
        lambda: table.scatter(1, wide[:6] % 4, 0.0),
        lambda: table.long().scatter(0, wide, 2),
    ]
    indexed.hold_refused(OPS, calls)


def test_memory_that_overlaps_is_left_to_stock() -> None:
    at = expanded(torch.tensor([0, 2, 1]), 3)
    calls = [
        lambda y: y.scatter_reduce_(0, at, y[:3], "amax"),
        lambda y: y.scatter_reduce_(0, at, y[1:4], "mean"),
        lambda y: y[:1].expand(5, 3).scatter_(0, at, 1.0),
    ]
    indexed.hold_overlapping(OPS, calls)


def test_shadow_checks() -> None:
    table, at, x = floats(30, 8), expanded(index_of(30, 50), 8), floats(50, 8)
    indexed.hold_shadow_checks(
        OPS,
        lambda: [*reductions(table, at, x), table.scatter(0, at, 1)],
        {"scatter_reduce": 16, "scatter": 1},
    )


class Attention(nn.Module):
    """Softmax over the edges of a node, as torch_geometric has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.score = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Weighted messages."""
        source, target = edges
        h = self.layer(x)
        score = self.score(h)[source]
        at = target.view(-1, 1).expand_as(score)
        most = score.new_zeros(len(x), 4)
        most = most.scatter_reduce_(0, at, score.detach(), "amax", include_self=False)
        weight = (score - most.index_select(0, target)).exp()
        total = weight.new_zeros(len(x), 4).scatter_add_(0, at, weight) + 1e-16
        weight = weight / total.index_select(0, target)
        messages = weight.unsqueeze(-1) * h.view(-1, 4, 4)[source]
        at = target.view(-1, 1, 1).expand_as(messages)
        mean = messages.new_zeros(len(x), 4, 4)
        return mean.scatter_reduce_(0, at, messages, "mean", include_self=False)


def test_modules_copies_autocast_transforms_threads_and_toggling() -> None:
    torch.manual_seed(0)
    model, x, edges = Attention(), torch.randn(60, 8), index_of(60, 800).view(2, 400)

    def run(model: nn.Module = model) -> list[Tensor]:
        model.zero_grad()
        y = model(x, edges)
        y.square().sum().backward()
        rates = torch.func.vmap(
            lambda z: z.scatter_reduce(0, edges[0], z[edges[1]], "amax")
        )
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            cast = model(x, edges).detach()
        return [y.detach(), *grads, cast, rates(x.t())]

    stock = [t.clone() for t in run()]
    with switching.accelerated(*OPS):
        hits = switching.hits("scatter_reduce")
        contract.exactly(run(copy.deepcopy(model)), stock)
        assert hits.accelerated >= 2
        with ptac.disabled():
            contract.exactly(run(), stock)
        results = switching.in_threads(lambda: run(copy.deepcopy(model)), times=9)
    for each in results():
        contract.exactly(each, stock)
