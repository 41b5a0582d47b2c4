"""Overrides at the key CUDA: results, and what is built upon them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from overridden import OPERATORS, stock_was_called
from switching import hits
from torch import Tensor

import pai_torchacc as ptac


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With ties, infinities and NaN, as pooling has to tell them apart."""
    x = torch.randn(sizes).mul(4).round().div(4)
    x.view(-1)[::17] = torch.nan
    x.view(-1)[::23] = -torch.inf
    return x.to(dtype)


def pooled(x: Tensor, **options: Any) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y, indices = F.max_pool2d(x, return_indices=True, **options)
    weights = torch.arange(y.numel(), dtype=torch.float32).view(y.shape).sin()
    y.backward(weights.to(y))
    assert x.grad is not None
    return [y.detach(), indices, x.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 2},
        {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
        {"kernel_size": (2, 3), "stride": (1, 2), "dilation": (2, 1)},
    ],
    ids=["halves", "overlapping", "dilated"],
)
def test_pooling_has_the_bits_of_the_cpu(
    on: Any, dtype: torch.dtype, channels_last: bool, options: dict[str, Any]
) -> None:
    x = image(2, 3, 9, 11, dtype=dtype)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    forward, backward = hits("max_pool2d"), hits("max_pool2d_backward")
    with ptac.disabled():
        expected = pooled(x, **options)
    before = forward.accelerated, backward.accelerated
    found = pooled(x.cuda(), **options)
    assert (forward.accelerated, backward.accelerated) == (before[0] + 1, before[1] + 1)
    assert not stock_was_called("max_pool2d")
    for ours, stock in zip(found, expected, strict=True):
        assert ours.device == torch.device("cuda", 0)
        assert ours.stride() == stock.stride()
        assert torch.equal(torch.nan_to_num(ours.cpu(), 7), torch.nan_to_num(stock, 7))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_pooling_of_16_bits_has_the_bits_of_the_cpu(
    on: Any, dtype: torch.dtype
) -> None:
    """Windows that do not overlap: of those that do, the CPU adds up in 16 bits."""
    x = image(2, 3, 8, 8, dtype=dtype)
    counted = hits("max_pool2d_backward")
    found = pooled(x.cuda(), kernel_size=2)
    assert counted.accelerated == 1
    with ptac.disabled():
        for ours, stock in zip(found, pooled(x, kernel_size=2), strict=True):
            assert torch.equal(
                torch.nan_to_num(ours.cpu(), 7), torch.nan_to_num(stock, 7)
            )


@pytest.mark.parametrize("width", [1, 5, 32, 1000, 3001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_log_softmax(on: Any, width: int, dtype: torch.dtype) -> None:
    """To half of the last place where float32 is rounded to 16 bits, else to a few."""
    x = (torch.randn(3, 7, width) * 3).to(dtype)
    weights = torch.randn(3, 7, width).to(dtype)
    counted = hits("log_softmax"), hits("log_softmax_backward")
    here = x.cuda().requires_grad_()
    y = F.log_softmax(here, -1)
    y.backward(weights.cuda())
    assert [c.accelerated for c in counted] == [1, 1]
    assert not stock_was_called("softmax")
    assert here.grad is not None
    assert y.dtype == here.grad.dtype == dtype
    exact = F.log_softmax(x.double(), -1)
    rounded = y.detach().cpu().double()
    # Of the output that it is given, which it has rounded.
    gradient = weights.double() - rounded.exp() * weights.double().sum(-1, True)
    eps = torch.finfo(dtype).eps
    size = max(1.0, float(exact.abs().max()))
    torch.testing.assert_close(rounded, exact, rtol=eps, atol=4 * 2**-23 * size)
    near = {"rtol": eps, "atol": 1e-5 * float(weights.abs().sum(-1).max())}
    torch.testing.assert_close(here.grad.cpu().double(), gradient, **near)


def test_a_program_trains(on: Any) -> None:
    """The same losses as on the CPU, by rows that are close."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.MaxPool2d(2), torch.nn.Flatten(),
        torch.nn.Linear(36, 5), torch.nn.LogSoftmax(-1),
    )  # fmt: skip
    x, target = torch.randn(6, 1, 8, 8), torch.arange(6) % 5

    def losses(device: str) -> list[float]:
        here = copy.deepcopy(model).to(device)
        optimizer = torch.optim.Adam(here.parameters(), lr=0.01)
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = F.nll_loss(here(x.to(device)), target.to(device))
            loss.backward()
            optimizer.step()
            found.append(loss.item())
        return found

    counted = [hits(op + part) for op in OPERATORS for part in ("", "_backward")]
    on_cuda = losses("cuda")
    assert [c.accelerated for c in counted] == [3, 3, 3, 3]
    with ptac.disabled():
        assert on_cuda == pytest.approx(losses("cpu"), rel=1e-5)


def test_autocast(on: Any) -> None:
    """Its dtypes. Torch has one kernel widen float16 and compute, which we have not."""
    x = torch.randn(2, 3, 8, 8, device="cuda").half()
    counted = hits("log_softmax"), hits("max_pool2d")
    with torch.autocast("cuda", torch.float16):
        y = F.log_softmax(x, -1)
        assert F.max_pool2d(x, 2).dtype == torch.float16
        assert F.log_softmax(x.float(), -1).dtype == torch.float32
    assert y.dtype == torch.float32
    assert [c.accelerated for c in counted] == [1, 1]
    assert counted[0].forwarded == {"argument": 1}
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.log_softmax(x.cpu().float(), -1))


def test_functional_transforms(on: Any) -> None:
    x = torch.randn(3, 4, 6, device="cuda")
    counted = hits("log_softmax")
    mapped = torch.func.vmap(lambda row: F.log_softmax(row, -1))(x)
    assert counted.accelerated == 1
    gradient = torch.func.grad(lambda row: F.log_softmax(row, -1).square().sum())(x)
    assert counted.accelerated == 2
    with ptac.disabled():
        here = x.cpu()
        torch.testing.assert_close(mapped.cpu(), F.log_softmax(here, -1))
        expected = torch.func.grad(lambda r: F.log_softmax(r, -1).square().sum())(here)
        torch.testing.assert_close(gradient.cpu(), expected)


def test_modules_are_copied(on: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.LogSoftmax(-1)).cuda()
    x = torch.randn(3, 6, device="cuda")
    counted = hits("log_softmax")
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    assert counted.accelerated == 2


def test_second_derivatives(on: Any) -> None:
    def second(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        [first] = torch.autograd.grad(
            F.log_softmax(x, -1).pow(3).sum(), x, create_graph=True
        )
        return torch.autograd.grad(first.square().sum(), x)[0]

    x = torch.randn(4, 6)
    found = second(x.cuda())
    with ptac.disabled():
        torch.testing.assert_close(found.cpu(), second(x), rtol=1e-4, atol=1e-4)


def test_views_with_gaps_are_made_dense(on: Any) -> None:
    x = torch.randn(4, 12, device="cuda")
    counted = hits("log_softmax")
    y = F.log_softmax(x[:, ::2], -1)
    assert counted.accelerated == 1
    assert y.is_contiguous()
    with ptac.disabled():
        torch.testing.assert_close(y.cpu(), F.log_softmax(x.cpu()[:, ::2], -1))
