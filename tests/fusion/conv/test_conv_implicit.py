"""Convolutions of any geometry, by rows that make no matrix of their images."""

from __future__ import annotations

import copy
import math
import threading
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPS = ("conv2d", "conv2d_backward")
ROWS = [row for row in switching.runnable_rows("conv2d") if row.startswith("implicit")]

Geometry = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

FORWARD: dict[str, Geometry] = {
    "1x1": ((2, 24, 14, 14), (40, 24, 1, 1), {}),
    "1x1 small": ((6, 40, 3, 3), (24, 40, 1, 1), {}),
    "1x1 strided": ((2, 24, 15, 15), (40, 24, 1, 1), {"stride": 2}),
    "deep": ((1, 300, 7, 7), (70, 300, 1, 1), {}),
    "3x3 strided": ((2, 24, 28, 28), (20, 24, 3, 3), {"stride": 2, "padding": 1}),
    "stem": ((1, 3, 61, 61), (20, 3, 7, 7), {"stride": 2, "padding": 3}),
    "patches": ((2, 3, 32, 32), (24, 3, 4, 4), {"stride": 4}),
    "8x8/4": ((2, 4, 44, 44), (16, 4, 8, 8), {"stride": 4}),
    "dilated": ((2, 12, 20, 20), (24, 12, 3, 3), {"padding": 2, "dilation": 2}),
    "both": ((1, 12, 33, 31), (12, 12, 3, 3), {"stride": 2, "dilation": 3}),
    "grouped": ((2, 48, 14, 14), (48, 8, 3, 3), {"padding": 1, "groups": 6}),
    "grouped, strided": (
        (2, 32, 15, 15), (48, 8, 3, 3), {"padding": 1, "stride": 2, "groups": 4}
    ),
    "lopsided": ((2, 9, 17, 29), (13, 9, 1, 7), {"padding": (0, 3), "stride": (2, 1)}),
    "much padding": ((2, 8, 5, 5), (8, 8, 2, 2), {"padding": 4, "stride": 3}),
    "signal": ((2, 24, 300), (40, 24, 3), {"padding": 1}),
    "long signal": ((2, 1, 2000), (16, 1, 80), {"stride": 16, "padding": 38}),
    "dilated signal": ((1, 16, 257), (16, 16, 3), {"padding": 4, "dilation": 4}),
}  # fmt: skip
TRANSPOSED: dict[str, Geometry] = {
    "2x2/2": ((2, 24, 9, 9), (24, 16, 2, 2), {"stride": 2}),
    "3x3/2": (
        (2, 24, 9, 9), (24, 16, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}
    ),
    "4x4/2": ((2, 16, 8, 11), (16, 24, 4, 4), {"stride": 2, "padding": 1}),
    "2x2/3": ((1, 8, 7, 7), (8, 8, 2, 2), {"stride": 3}),
    "groups": ((2, 16, 9, 9), (16, 6, 3, 3), {"stride": 2, "groups": 4}),
    "dilation": ((1, 8, 9, 9), (8, 8, 3, 3), {"stride": 2, "dilation": 2}),
    "signal": ((2, 16, 40), (16, 8, 4), {"stride": 2, "padding": 1}),
}  # fmt: skip
ELSE = {"dtype", "disabled in this thread"}
"""Why calls in float64, and those that ours are compared with, are stock's."""

NAMES = [*FORWARD, *(f"transposed {name}" for name in TRANSPOSED)]


def layer(name: str) -> tuple[Any, Geometry]:
    plain = name.removeprefix("transposed ")
    of = (FORWARD if plain == name else TRANSPOSED)[plain]
    functions = (F.conv1d, F.conv2d, F.conv_transpose1d, F.conv_transpose2d)
    return functions[2 * (plain != name) + len(of[0]) - 3], of


@lru_cache(4)
def case(name: str) -> contract.Case:
    """A convolution and its gradients; the same object for rows one after the other."""
    function, (sizes, weight, options) = layer(name)
    groups = options.get("groups", 1)
    n_out = weight[1] * groups if name.startswith("transposed") else weight[0]
    scale = 1 / math.sqrt(math.prod(weight[1:]))

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*sizes, dtype=dtype).requires_grad_()
        w = contract.draw(*weight, dtype=dtype, scale=scale).requires_grad_()
        b = contract.draw(n_out, dtype=dtype).requires_grad_()
        y = function(x, w, b, **options)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad, "weight": w.grad, "bias": b.grad}

    return run


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", NAMES)
def test_contract(name: str, row: str) -> None:
    with switching.accelerated(*OPS, row=row):
        forward, backward = (switching.hits(op) for op in OPS)
        contract.hold(case(name))
        assert {*forward.forwarded, *backward.forwarded} <= ELSE
        assert backward.accelerated == 2 * forward.accelerated > 0


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("row", ROWS)
def test_threads_change_no_outputs(row: str, n_threads: int) -> None:
    """Nor do the other images of a batch."""
    function, (sizes, weight, options) = layer("3x3 strided")
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(5, *sizes[1:]), torch.randn(weight)
    before = torch.get_num_threads()
    with switching.accelerated(*OPS, row=row):
        alone = torch.cat([function(one[None], w, **options) for one in x])
        try:
            torch.set_num_threads(n_threads)
            together = function(x, w, **options)
        finally:
            torch.set_num_threads(before)
    assert torch.equal(alone, together)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "name", ["3x3 strided", "grouped", "signal", "transposed 4x4/2"]
)
def test_what_is_not_finite_stays_where_stock_has_it(
    name: str, row: str, bad: float
) -> None:
    function, (sizes, weight, options) = layer(name)
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(sizes), torch.randn(weight)
    x.view(-1)[x.numel() // 3] = bad
    stock = function(x, w, **options)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = function(x, w, **options)
        assert hits.accelerated == 1
    assert torch.equal(ours.isfinite(), stock.isfinite())
    assert torch.equal(ours.isnan(), stock.isnan())


@pytest.mark.parametrize("row", ROWS)
def test_second_derivatives_and_functorch(row: str) -> None:
    layer = nn.Conv2d(4, 6, 3, 2, 1).double()
    single = copy.deepcopy(layer).float()
    x = torch.randn(2, 4, 9, 9)

    def loss(x: Tensor) -> Tensor:
        return (single(x).square().sum() + single(x).sum()) / 7

    def second() -> Tensor:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    def jacobian() -> Tensor:
        return torch.func.grad(loss)(x)

    stock = second(), jacobian(), torch.vmap(loss)(x[None])
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = second(), jacobian(), torch.vmap(loss)(x[None])
        assert hits.accelerated > 0
    torch.testing.assert_close(ours, stock)


@pytest.mark.parametrize("row", ROWS)
def test_strides_of_results_are_stocks(row: str) -> None:
    """Inputs that are not dense run stock; gradients that are not are made so."""
    w = torch.randn(8, 4, 3, 3)
    images = torch.randn(2, 4, 9, 18)[..., ::2]
    layer = nn.Conv2d(4, 8, 3, 2)
    x = torch.randn(2, 4, 9, 9, requires_grad=True)
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        ours = F.conv2d(images, w, stride=2)
        assert hits[0].forwarded == {"layout": 1}
        layer(x).sum().backward()  # an expanded gradient
        assert hits[1].accelerated == 2
        served = layer(x)
    assert ours.stride() == F.conv2d(images, w, stride=2).stride()
    assert served.stride() == layer(x).stride()


def test_toggled_while_in_use() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=4),
        nn.ReLU(), nn.ConvTranspose2d(8, 3, 4, 2, 1),
    )  # fmt: skip
    x = torch.randn(4, 3, 20, 20)
    stock, wrong, stopped = net(x), [], threading.Event()

    def work() -> None:
        while not stopped.is_set():
            if not torch.allclose(net(x), stock, rtol=1e-4, atol=1e-5):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with switching.accelerated(*OPS, row=ROWS[-1]):
            net(x)
    stopped.set()
    for thread in threads:
        thread.join()
    assert not wrong
