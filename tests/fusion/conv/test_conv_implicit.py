"""Convolutions of any geometry, by rows that make no matrix of their images."""

from __future__ import annotations

import copy
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from toggling import hold_in_threads
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
    "3x3 strided, wide": ((1, 4, 7, 97), (5, 4, 3, 3), {"stride": 2, "padding": 1}),
    "3x3 strided, even": ((3, 4, 9, 80), (5, 4, 3, 3), {"stride": 2, "padding": 2}),
    "1x1 strided, wide": ((2, 4, 9, 70), (5, 4, 1, 1), {"stride": 2}),
    "1x1 strided, odd": ((2, 4, 8, 71), (5, 4, 1, 1), {"stride": 2, "padding": 1}),
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
LONG_SUMS: dict[str, Geometry] = {
    "few": ((2, 12, 28, 28), (24, 12, 3, 3), {"padding": 2, "dilation": 2}),
    "64 of a group": ((2, 256, 56, 56), (512, 64, 1, 1), {"groups": 4}),
    "1024": ((4, 1024, 14, 14), (256, 1024, 1, 1), {}),
    "1024 of 1x1": ((200, 1024, 1, 1), (128, 1024, 1, 1), {}),
    "49 taps": ((2, 32, 28, 28), (32, 32, 7, 7), {"padding": 3}),
    "classes": ((2, 64, 28, 28), (128, 64, 3, 3), {"padding": 1, "stride": 2}),
    "signal": ((4, 64, 500), (64, 64, 3), {"padding": 4, "dilation": 4}),
}
"""Sums of many terms, and of few that stock adds up in parts."""
ELSE = {"dtype", "disabled in this thread"}
"""Why calls in float64, and those that ours are compared with, are stock's."""

NAMES = [*FORWARD, *(f"transposed {name}" for name in TRANSPOSED)]


def layer(name: str) -> tuple[Any, Geometry]:
    plain = name.removeprefix("transposed ")
    of = (FORWARD | LONG_SUMS if plain == name else TRANSPOSED)[plain]
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


def results(name: str, with_relu: bool, dtype: torch.dtype) -> list[Tensor]:
    """Outputs and both gradients, of normal images or of what ReLU leaves of them."""
    function, (sizes, weight, options) = layer(name)
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(sizes), torch.randn(weight) / math.sqrt(math.prod(weight[1:]))
    x, w = ((x.relu() if with_relu else x).to(dtype), w.to(dtype))
    y = function(x.requires_grad_(), w.requires_grad_(), **options)
    y.backward(torch.randn(y.shape).to(dtype))
    return [y.detach(), x.grad, w.grad]


@lru_cache(1)
def results_to_beat(name: str, with_relu: bool) -> tuple[list[Tensor], list[Tensor]]:
    """By stock and in float64."""
    stock = results(name, with_relu, torch.float32)
    return stock, results(name, with_relu, torch.float64)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("with_relu", [False, True])
@pytest.mark.parametrize("name", LONG_SUMS)
def test_errors_are_of_the_size_of_stocks(name: str, with_relu: bool, row: str) -> None:
    """Closer than the contract asks, which adds two units in the last place."""
    stock, exact = results_to_beat(name, with_relu)
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        ours = results(name, with_relu, torch.float32)
        assert [h.accelerated for h in hits] == [1, 2]
    for o, s, e in zip(ours, stock, exact, strict=True):
        ours_off, stock_off = (o.double() - e).abs(), (s.double() - e).abs()
        assert ours_off.square().mean().sqrt() <= 2 * stock_off.square().mean().sqrt()
        assert ours_off.max() <= 3 * stock_off.max()


BATCHES: dict[str, Geometry] = {
    "1x1 small": FORWARD["1x1 small"],
    "3x3 strided": FORWARD["3x3 strided"],
    "transposed 4x4/2": TRANSPOSED["4x4/2"],
    "one pixel": ((17, 300, 1, 1), (24, 300, 1, 1), {}),
    "small, deep": ((17, 100, 5, 5), (16, 100, 3, 3), {"padding": 1, "stride": 2}),
}
"""Batches of which several images are a strip, and such of which none are."""


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", BATCHES)
def test_threads_change_no_outputs(name: str, row: str, n_threads: int) -> None:
    """Nor do the other images of a batch."""
    is_transposed = name.startswith("transposed")
    function = F.conv_transpose2d if is_transposed else F.conv2d
    sizes, weight, options = BATCHES[name]
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(sizes), torch.randn(weight)
    before = torch.get_num_threads()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        alone = torch.cat([function(one[None], w, **options) for one in x])
        try:
            torch.set_num_threads(n_threads)
            together = function(x, w, **options)
        finally:
            torch.set_num_threads(before)
        assert hits.accelerated == len(x) + 1
    assert torch.equal(alone, together)


@pytest.mark.parametrize("row", ROWS)
def test_strips_that_are_mostly_copies_run_stock(row: str) -> None:
    """As many rows and columns as taps reach are copied for a few places."""
    x, w = torch.randn(1, 64, 33, 33), torch.randn(64, 64, 3, 3)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        F.conv2d(x, w, padding=12, dilation=12)
        assert hits.forwarded == {"shape": 1}
        F.conv2d(x, w, padding=2, dilation=2)
        assert hits.accelerated == 1


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
    hold_in_threads(net, x, OPS, ROWS[-1])


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    ("sizes", "weight", "options", "pays"),
    [
        ((4, 16, 14, 14), (32, 16, 3, 3), {"stride": 2}, True),
        ((4, 16, 9, 9), (32, 16, 3, 3), {"stride": 2}, False),
        ((1, 16, 14, 14), (32, 16, 3, 3), {"stride": 2}, False),
        ((1, 36, 9, 9), (8, 36, 1, 1), {"stride": 2}, True),
        ((1, 80, 9, 9), (8, 80, 1, 1), {"stride": 2}, False),
        ((1, 36, 4, 4), (8, 36, 1, 1), {"stride": 2}, False),
        ((4, 256, 28, 28), (256, 256, 3, 3), {"stride": 2}, False),
        ((4, 16, 7, 7), (32, 16, 9, 9), {"padding": 4}, False),
    ],
)
def test_a_table_names_it_for_what_it_is_measured_for(
    row: str, sizes: tuple[int, ...], weight: tuple[int, ...], options: dict[str, int],
    pays: bool, tmp_path: Path,
) -> None:  # fmt: skip
    x, w = torch.randn(sizes), torch.randn(weight)
    with switching.named(tmp_path, ["conv2d"], row):
        hits = switching.hits("conv2d")
        F.conv2d(x, w, **options)
        assert hits.accelerated == pays
        assert hits.forwarded == ({} if pays else {"not measured faster": 1})
