"""The room of reduced precision: torch.addmm and torch.mm, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import contract
import pytest
import torch
from lowering import needs_bf16, rounding
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

pytestmark = needs_bf16

SIZES = [(64, 96, 130), (9, 300, 40), (200, 64, 17), (1, 70, 33)]
ORDERS = ["nn", "nt", "tn", "tt"]

Call = Callable[[Tensor, Tensor, Tensor], Tensor]

CALLS: dict[str, Call] = {
    "addmm": torch.addmm,
    "mm": lambda bias, a, b: torch.mm(a, b) + bias,
}


def matrix(m: int, n: int, order: str, dtype: torch.dtype) -> Tensor:
    if order == "n":
        return contract.draw(m, n, dtype=dtype).requires_grad_()
    return contract.draw(n, m, dtype=dtype).t().requires_grad_()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("op", CALLS)
def test_contract(op: str, size: tuple[int, int, int], order: str) -> None:
    m, k, n = size

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        given = (
            contract.draw(n, dtype=dtype).requires_grad_(),
            matrix(m, k, order[0], dtype),
            matrix(k, n, order[1], dtype),
        )
        y = CALLS[op](*given)
        grad = contract.draw(m, n, dtype=dtype).to(y.dtype)
        found = torch.autograd.grad(y, given[1:], grad)
        return {"y": y.to(dtype), "a": found[0], "b": found[1]}

    with rounding("mm", "addmm") as hits:
        contract.hold(case, bf16=True)
        assert hits[op].accelerated > 0
        assert hits["mm"].accelerated >= 2


def given(m: int = 60, k: int = 64, n: int = 96) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    made = torch.randn(n), torch.randn(m, k), torch.randn(k, n)
    return tuple(t.requires_grad_() for t in made)  # type: ignore[return-value]


def test_bias_is_added_in_float32() -> None:
    bias = torch.full((96,), 1 + 2**-20)
    _, x, w = (t.detach() for t in given())
    with rounding("mm", "addmm"):
        assert torch.equal(torch.addmm(bias, x, w), torch.mm(x, w) + bias)


def test_numbers_that_are_none() -> None:
    bias, x, w = (t.detach() for t in given())
    x[3, 5], x[10, 0], w[4, 7], bias[9] = torch.nan, torch.inf, -torch.inf, torch.nan
    stock = torch.addmm(bias, x, w)
    with rounding("addmm") as hits:
        ours = torch.addmm(bias, x, w)
        assert hits["addmm"].accelerated == 1
    assert torch.equal(ours.isnan(), stock.isnan())
    assert torch.equal(ours.isinf(), stock.isinf())


@pytest.mark.parametrize("m", [1, 60])
@pytest.mark.parametrize("k", [1, 33, 70, 300])
def test_what_is_not_finite_stays_in_its_row(k: int, m: int) -> None:
    """With AMX oneDNN itself spreads it to others where terms fill no tile."""
    bias, x, w = (t.detach() for t in given(m=m, k=k, n=90))
    layer = nn.Linear(k, 90)
    x[m // 2, 0], w[k // 2, 7] = torch.nan, torch.inf
    x.requires_grad_()

    def results() -> list[Tensor]:
        found = []
        for w_of in (w, w.t().contiguous().t()):
            for x_of in (x, x.t().contiguous().t()):
                found.append(torch.addmm(bias, x_of, w_of))
        y = layer(x)
        grad = torch.ones_like(y)
        grad[m // 3, 5] = -torch.inf
        return [*found, y, *torch.autograd.grad(y, (x, layer.weight), grad)]

    stock = results()
    with rounding("mm", "addmm", "linear_act", "linear_act_backward") as hits:
        ours = results()
        assert hits["addmm"].accelerated in (4, 5)
        counted = hits["linear_act"], hits["linear_act_backward"]
        assert [h.accelerated for h in counted] in ([1, 1], [0, 0])  # [0, 0]: thin
    for o, s in zip(ours, stock, strict=True):
        assert torch.equal(o.isnan(), s.isnan())
        assert torch.equal(o.isinf(), s.isinf())


@pytest.mark.parametrize("op", CALLS)
def test_gradients_have_the_precision_of_forward(op: str) -> None:
    inputs = given()
    call = CALLS[op]
    stock = torch.autograd.grad(call(*inputs).square().sum(), inputs)

    with rounding("mm", "addmm") as hits:
        with torch.autocast("cpu", enabled=False):
            whole = call(*inputs)
        assert hits[op].forwarded == {"autocast": 1}
        rounded = call(*inputs)
        before = hits["mm"].accelerated
        ours = torch.autograd.grad(whole.square().sum(), inputs)
        assert hits["mm"].accelerated == before
        assert hits["mm"].forwarded.get("forward call in float32") == 2
        torch.autograd.grad(rounded.square().sum(), inputs)
        assert hits["mm"].accelerated == before + 2
    contract.exactly(ours, stock)


def test_gradients_of_what_stock_has_computed_are_whole() -> None:
    inputs = given()
    y = torch.addmm(*inputs)
    stock = torch.autograd.grad(y, inputs, torch.ones_like(y), retain_graph=True)
    with rounding("mm", "addmm") as hits:
        ours = torch.autograd.grad(y, inputs, torch.ones_like(y))
        assert hits["mm"].accelerated == 0
    contract.exactly(ours, stock)


def test_users_autocast_decides() -> None:
    bias, x, w = given()
    with rounding("mm", "addmm") as hits:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.addmm(bias, x, w)
        assert y.dtype is torch.bfloat16
        torch.autograd.grad(y.sum(), (x, w))
        assert hits["addmm"].accelerated == hits["mm"].accelerated == 0


def test_checkpoints_and_double_backward() -> None:
    bias, x, w = given()

    def second(call: Callable[[], Tensor]) -> tuple[Tensor, ...]:
        (g,) = torch.autograd.grad(call().sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (x, w))

    def layer() -> Tensor:
        return torch.addmm(bias, x, w)

    for call in (layer, lambda: checkpoint(layer, use_reentrant=False)):
        stock = second(call)
        with rounding("mm", "addmm") as hits:
            ours = second(call)
            assert hits["addmm"].accelerated >= 1
        for o, s in zip(ours, stock, strict=True):
            assert (o - s).norm() < 0.1 * s.norm()


class Conv1D(nn.Module):
    """A layer of GPT-2, whose weight lies [in, out]."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(k, n) / k**0.5)
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return y.view(*x.shape[:-1], -1)


def test_layers_of_gpt2() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(Conv1D(64, 256), nn.GELU(approximate="tanh"), Conv1D(256, 64))
    x = torch.randn(2, 60, 64)

    def gradients() -> list[Tensor]:
        net.zero_grad()
        net(x).square().mean().backward()
        return [p.grad.clone() for p in net.parameters()]

    stock = gradients()
    with rounding("mm", "addmm") as hits:
        ours = gradients()
        assert hits["addmm"].accelerated == 2
        assert hits["mm"].accelerated == 3  # x has no gradient
    for o, s in zip(ours, stock, strict=True):
        assert (o - s).norm() < 0.02 * s.norm()
