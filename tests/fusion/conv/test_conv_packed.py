"""Kernels of 1x1 as products of all images together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = [row for row in switching.runnable_rows("conv2d") if row.startswith("packed")]

CASES: dict[str, tuple[tuple[int, ...], int]] = {
    "one image": ((1, 64, 14, 14), 96),
    "images that share panels": ((5, 40, 7, 7), 33),
    "many images in a panel": ((9, 24, 4, 4), 20),
    "rows of places": ((3, 17, 3, 11), 14),
    "more terms than a panel": ((2, 530, 6, 7), 31),
    "more rows than a block": ((2, 20, 5, 5), 620),
    "more of all": ((3, 300, 13, 13), 520),
    "a channel": ((4, 1, 6, 6), 8),
    "to a channel": ((4, 30, 6, 6), 1),
    "panels that are whole": ((2, 32, 16, 16), 28),
    "signal": ((3, 24, 90), 40),
    "volume": ((2, 24, 3, 5, 6), 15),
}


def convolution(x: Tensor) -> Any:
    return (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]


def drawn(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    sizes, rows = CASES[name]
    ones = (1,) * (len(sizes) - 2)
    return (
        contract.draw(*sizes, dtype=dtype),
        contract.draw(rows, sizes[1], *ones, dtype=dtype, scale=sizes[1] ** -0.5),
        contract.draw(rows, dtype=dtype),
    )


def both(row: str) -> Any:
    return switching.accelerated("conv2d", "conv2d_backward", row=row)


def with_gradients(*tensors: Tensor) -> list[Tensor]:
    """The result, and gradients of all of these by what does not depend on it."""
    x, w, b = (t.detach().requires_grad_() for t in tensors)
    y = convolution(x)(x, w, b)
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, (x, w, b), weights)]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", CASES)
def test_packed_results_and_gradients(name: str, row: str) -> None:
    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        names = ("y", "grad_x", "grad_w", "grad_b")
        return dict(zip(names, with_gradients(*drawn(name, dtype)), strict=True))

    with both(row):
        hits, of_backward = switching.hits("conv2d"), switching.hits("conv2d_backward")
        contract.hold(run)
        assert {*hits.forwarded} <= {"dtype", "disabled in this thread"}
        assert hits.accelerated > 0
        assert of_backward.accelerated == 2 * hits.accelerated


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", CASES)
def test_neither_threads_nor_other_images_change_bits(
    name: str, row: str, n_threads: int
) -> None:
    x, w, b = drawn(name)
    before = torch.get_num_threads()
    with both(row):
        torch.set_num_threads(1)
        try:
            alone = torch.cat([convolution(x)(one, w, b) for one in x.split(1)])
            at_one = with_gradients(x, w, b)
            torch.set_num_threads(n_threads)
            together = with_gradients(x, w, b)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together[0])
    assert all(map(torch.equal, at_one, together))


@pytest.mark.parametrize("row", ROWS)
def test_what_is_not_packed(row: str) -> None:
    x, w = torch.randn(2, 16, 8, 8), torch.randn(24, 16, 1, 1)
    larger = torch.randn(24, 16, 3, 3)
    last = torch.channels_last
    calls: dict[str, list[Callable[[], Tensor]]] = {
        "shape": [
            lambda: F.conv2d(x, w, stride=2),
            lambda: F.conv2d(x, w, padding=1),
            lambda: F.conv2d(x, larger),
            lambda: F.conv2d(x, w[:, :8].contiguous(), groups=2),
            lambda: F.conv2d(x[..., :3, :5].contiguous(), w),
        ],
        "layout": [
            lambda: F.conv2d(x.to(memory_format=last), w),
            lambda: F.conv2d(x[..., ::2], w),
        ],
    }
    for reason, of_reason in calls.items():
        for call in of_reason:
            with both(row):
                hits = switching.hits("conv2d")
                ours = call()
                assert hits.forwarded == {reason: 1}
            assert torch.equal(ours, call())


@pytest.mark.parametrize("row", ROWS)
def test_packed_transposes(row: str) -> None:
    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x, w, b = (
            contract.draw(*sizes, dtype=dtype).requires_grad_()
            for sizes in ((3, 40, 7, 7), (40, 24, 1, 1), (24,))
        )
        y = F.conv_transpose2d(x, w, b)
        weights = torch.linspace(-1, 2, y.numel(), dtype=dtype).view_as(y)
        grads = torch.autograd.grad(y, (x, w, b), weights)
        names = ("y", "grad_x", "grad_w", "grad_b")
        return dict(zip(names, (y.detach(), *grads), strict=True))

    with both(row):
        hits, of_backward = switching.hits("conv2d"), switching.hits("conv2d_backward")
        contract.hold(run)
        assert hits.accelerated > 0
        assert of_backward.accelerated >= 2 * hits.accelerated


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["images that share panels", "more of all"])
def test_places_that_are_not_finite_are_stocks(name: str, row: str, bad: float) -> None:
    x, w, b = drawn(name)
    x[1, 0, 2, 3] = bad
    stock = F.conv2d(x, w, b)
    with both(row):
        hits = switching.hits("conv2d")
        ours = F.conv2d(x, w, b)
        assert hits.accelerated == 1
    assert torch.equal(ours.isfinite(), stock.isfinite())
    assert torch.equal(ours.isnan(), stock.isnan())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("act", [nn.ReLU, nn.ReLU6])
def test_packed_with_normalization_and_activation(
    row: str, act: Callable[[], nn.Module]
) -> None:
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(300, 40, 1), nn.BatchNorm2d(40), act(), nn.Conv2d(40, 30, 1), act()
    ).eval()
    norm = net[1]
    assert isinstance(norm, nn.BatchNorm2d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    x = 3 * torch.randn(3, 300, 7, 7)
    x[1, 3, 5, 5] = math.nan
    with torch.no_grad():
        stock = net(x)
        with both(row):
            hits = switching.hits("conv2d")
            ours = net(x)
            assert hits.accelerated == 2
    torch.testing.assert_close(ours, stock, equal_nan=True, rtol=1e-5, atol=2e-5)
