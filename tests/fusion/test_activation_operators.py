"""Mish and its gradient, and PReLU's gradient, behind torch's functions and modules."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

OPS = ("mish", "mish_backward", "prelu_backward")
PRELU_BACKWARD = torch.ops.aten._prelu_kernel_backward

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1e38, -1e38]


def mish_and_gradient(*shape: int) -> Callable[[torch.dtype], dict[str, Tensor]]:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*shape, dtype=dtype, scale=3).requires_grad_()
        y = F.mish(x)
        (grad,) = torch.autograd.grad(y, x, contract.draw(*shape, dtype=dtype))
        return {"y": y.detach(), "grad": grad}

    return case


@pytest.mark.parametrize("shape", [(7,), (3, 50, 21), (40000,)])
@pytest.mark.parametrize("row", switching.runnable_rows("mish"))
def test_mish_is_close(row: str, shape: tuple[int, ...]) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS[:2]]
        contract.hold(mish_and_gradient(*shape))
        assert all(h.accelerated for h in hits)


@pytest.mark.parametrize("row", switching.runnable_rows("mish"))
def test_mish_of_special_numbers(row: str) -> None:
    """What is not finite has its place and kind, and the tails are stock's."""
    x = torch.cat([torch.tensor(SPECIAL), torch.linspace(-200, 200, 4001)])
    one = torch.ones_like(x)
    stock = F.mish(x), torch.ops.aten.mish_backward(one, x)
    with switching.accelerated(*OPS, row=row):
        ours = F.mish(x), torch.ops.aten.mish_backward(one, x)
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-6, atol=1e-6, equal_nan=True)
        tail = (x > -80) & (x < -20)
        torch.testing.assert_close(a[tail], b[tail], rtol=1e-6, atol=0)


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x[:1],
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.flatten(2),
    lambda x: x[:, :, 0, 0],
    lambda x: x[:, :, 0, 0].contiguous(),
    lambda x: x.transpose(2, 3),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
]
SERVED = {0, 1, 2, 3, 5}


@pytest.mark.parametrize("row", switching.runnable_rows("prelu_backward"))
def test_prelu_of_results_that_go_past_the_caches(row: str) -> None:
    """Of more than 32 MiB; pieces of 2 704 elements, that fill lines, and a channel."""
    for sizes in ((5, 640, 52, 52), (1, 1, 2951, 3001)):
        x, grad = torch.randn(sizes), torch.randn(sizes)
        weight = torch.full((1, sizes[1], 1, 1), 0.25)
        stock = PRELU_BACKWARD(grad, x, weight)
        with switching.accelerated("prelu_backward", row=row):
            hits = switching.hits("prelu_backward")
            contract.exactly(PRELU_BACKWARD(grad, x, weight), stock)
            assert hits.accelerated == 1


@pytest.mark.parametrize("n_weights", [1, 6])
@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@pytest.mark.parametrize("row", switching.runnable_rows("prelu_backward"))
def test_prelu_has_stocks_bits(row: str, number: int, n_weights: int) -> None:
    torch.manual_seed(number)
    x = torch.randn(3, 6, 7, 9)
    x.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL)
    x = LAYOUTS[number](x)
    if x.dtype is not torch.float32:
        n_weights = 1
    weight = torch.linspace(-0.5, 1.5, n_weights).to(x.dtype)

    def run() -> list[Tensor]:
        leaf, w = x.detach().requires_grad_(), weight.clone().requires_grad_()
        y = F.prelu(leaf, w)
        return list(torch.autograd.grad(y, (leaf, w), torch.cos(y.detach())))

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("prelu_backward")
        ours = run()
        if number in SERVED:
            assert hits.accelerated == 1, hits
        else:
            assert hits.accelerated + sum(hits.forwarded.values()) <= 1
    contract.exactly(ours, stock)


def test_errors_are_torchs() -> None:
    aten, x = torch.ops.aten, torch.randn(2, 3)
    calls: list[Callable[[], object]] = [
        lambda: F.mish(x.int()),
        lambda: F.mish(x.half()),
        lambda: F.prelu(x, torch.ones(5)),
        lambda: aten._prelu_kernel_backward(x, x[:1], torch.ones(1, 3)),
        lambda: aten._prelu_kernel_backward(x, x, torch.ones(2, 1)),
        lambda: aten.mish_backward(x[:1], x),
        lambda: aten.mish_backward(x.double(), x),
    ]

    stock = [contract.said(call) for call in calls]
    with switching.accelerated(*OPS):
        ours = [contract.said(call) for call in calls]
    for a, b in zip(ours, stock, strict=True):
        contract.exactly(a, b)


def test_derivatives_and_transforms() -> None:
    x = torch.linspace(-3, 3, 24).reshape(4, 6)
    weight = torch.tensor([0.25])
    with switching.accelerated(*OPS):
        second = torch.func.jacrev(torch.func.jacrev(F.mish))(torch.tensor(0.7))
        assert second == pytest.approx(
            torch.func.jacrev(torch.func.jacrev(F.mish))(
                torch.tensor(0.7, dtype=torch.float64)
            ).item(),
            rel=1e-4,
        )
        ours = torch.func.vmap(torch.func.grad(lambda x: F.mish(x).sum()))(x)
        prelu = torch.func.vmap(torch.func.grad(lambda x: F.prelu(x, weight).sum()))(x)
        with ptac.disabled():
            stock = torch.func.vmap(torch.func.grad(lambda x: F.mish(x).sum()))(x)
    torch.testing.assert_close(ours, stock)
    torch.testing.assert_close(prelu, torch.where(x > 0, 1.0, 0.25))
    leaf = x.double().requires_grad_()
    with switching.accelerated(*OPS):
        assert torch.autograd.gradgradcheck(F.mish, leaf)


def test_modules_copies_autocast_threads_and_toggling() -> None:
    model = nn.Sequential(nn.PReLU(8), nn.Mish())
    x = torch.randn(16, 8, 30, 30)

    def run(model: nn.Module) -> list[Tensor]:
        model(x).square().sum().backward()
        grad = model[0].weight.grad  # type: ignore[index]
        model.zero_grad()
        return [grad]

    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(x.bfloat16())
    stock = run(model)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        torch.testing.assert_close(run(copy.deepcopy(model)), stock)
        assert [h.accelerated for h in hits] == [1, 1, 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(x.bfloat16()), stock_cast)
        results = switching.in_threads(lambda: model(x))
    for y in results():
        torch.testing.assert_close(y, model(x))
