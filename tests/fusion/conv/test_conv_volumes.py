"""Convolutions of volumes, which have a depth besides rows and columns."""

from __future__ import annotations

import copy
import math
import random
from functools import lru_cache
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
ELSE = {"dtype", "disabled in this thread"}
"""Why calls in float64, and those that ours are compared with, are stock's."""

Geometry = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

LAYERS: dict[str, Geometry] = {
    "first": ((2, 1, 6, 20, 20), (16, 1, 3, 3, 3), {"padding": 1}),
    "stem": (
        (1, 3, 5, 23, 23), (8, 3, 3, 7, 7), {"stride": (1, 2, 2), "padding": (1, 3, 3)}
    ),
    "3x3x3": ((2, 12, 6, 14, 14), (20, 12, 3, 3, 3), {"padding": 1}),
    "wide": ((1, 8, 4, 12, 70), (8, 8, 3, 3, 3), {"padding": 1}),
    "strided": ((2, 16, 8, 14, 14), (24, 16, 3, 3, 3), {"stride": 2, "padding": 1}),
    "1x1x1": ((2, 24, 4, 9, 9), (16, 24, 1, 1, 1), {}),
    "1x1x1 strided": ((2, 16, 6, 9, 9), (24, 16, 1, 1, 1), {"stride": 2}),
    "rows and columns": ((2, 12, 5, 12, 12), (16, 12, 1, 3, 3), {"padding": (0, 1, 1)}),
    "depth": ((2, 16, 8, 7, 7), (12, 16, 3, 1, 1), {"padding": (1, 0, 0)}),
    "one plane": ((2, 16, 1, 14, 14), (16, 16, 1, 3, 3), {"padding": (0, 1, 1)}),
    "dilated": (
        (1, 8, 7, 13, 13), (12, 8, 3, 3, 3),
        {"padding": (1, 2, 2), "dilation": (1, 2, 2)},
    ),
    "grouped": ((2, 24, 5, 9, 9), (24, 6, 3, 3, 3), {"padding": 1, "groups": 4}),
    "depthwise": ((2, 16, 6, 9, 9), (16, 1, 3, 3, 3), {"padding": 1, "groups": 16}),
    "transposed 2/2": ((2, 16, 4, 7, 7), (16, 8, 2, 2, 2), {"stride": 2}),
    "transposed 3/2": (
        (1, 12, 4, 7, 7), (12, 8, 3, 3, 3),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed, groups": (
        (2, 8, 4, 6, 6), (8, 3, 2, 3, 3), {"stride": (1, 2, 2), "groups": 2}
    ),
}  # fmt: skip


def function_of(name: str) -> Any:
    return F.conv_transpose3d if name.startswith("transposed") else F.conv3d


@lru_cache(2)
def case(name: str) -> contract.Case:
    """A convolution and its gradients; the same object for rows one after the other."""
    sizes, weight, options = LAYERS[name]
    is_transposed = name.startswith("transposed")
    n_out = weight[1] * options.get("groups", 1) if is_transposed else weight[0]
    scale = 1 / math.sqrt(math.prod(weight[1:]))

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*sizes, dtype=dtype).requires_grad_()
        w = contract.draw(*weight, dtype=dtype, scale=scale).requires_grad_()
        b = contract.draw(n_out, dtype=dtype).requires_grad_()
        y = function_of(name)(x, w, b, **options)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad, "weight": w.grad, "bias": b.grad}

    return run


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", LAYERS)
def test_contract(name: str, row: str) -> None:
    with switching.accelerated(*OPS, row=row):
        forward, backward = (switching.hits(op) for op in OPS)
        contract.hold(case(name))
        assert {*forward.forwarded, *backward.forwarded} <= ELSE
        assert backward.accelerated == 2 * forward.accelerated > 0


def random_call(rng: random.Random) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A function of x, w and bias, and these."""
    groups = rng.choice([1, 1, 1, 2, 3])
    c, k = groups * rng.randint(1, 8), groups * rng.randint(1, 12)
    kernel, stride, dilation, padding, sizes = (
        [rng.choice(of) for _ in range(3)]
        for of in ((1, 2, 3, 3, 5), (1, 1, 2, 3), (1, 1, 2), range(4), (5, 8, 13, 17))
    )
    reach = [d * (n - 1) + 1 for d, n in zip(dilation, kernel, strict=True)]
    padding = [min(p, r // 2) for p, r in zip(padding, reach, strict=True)]
    if rng.random() < 0.3:
        more = [rng.randrange(s) for s in stride]
        sizes = [max(n // 2, r) for n, r in zip(sizes, reach, strict=True)]
        w = torch.randn(c, k // groups, *kernel)

        def transposed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.conv_transpose3d(x, w, b, stride, padding, more, groups, dilation)

        call = transposed
    else:
        sizes = [max(n, r) for n, r in zip(sizes, reach, strict=True)]
        w = torch.randn(k, c // groups, *kernel)

        def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            return F.conv3d(x, w, b, stride, padding, dilation, groups)

        call = forward
    return call, torch.randn(rng.randint(1, 3), c, *sizes), w, torch.randn(k)


def with_gradients(call: Any, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    leaves = [t.detach().clone().requires_grad_() for t in tensors]
    y = call(*leaves)
    torch.default_generator.manual_seed(1)
    y.backward(torch.randn(y.shape).to(y.dtype))
    return [y.detach(), *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("row", ROWS)
def test_random_geometry(row: str) -> None:
    """Sizes and strides of all results are stock's, values those of float64."""
    rng = random.Random(0)
    torch.default_generator.manual_seed(0)
    served = 0
    for _ in range(25):
        call, *tensors = random_call(rng)
        stock = with_gradients(call, tensors)
        exact = with_gradients(call, [t.double() for t in tensors])
        with switching.accelerated(*OPS, row=row):
            hits = [switching.hits(op) for op in OPS]
            ours = with_gradients(call, tensors)
            served += sum(h.accelerated for h in hits)
        for o, s, e in zip(ours, stock, exact, strict=True):
            assert o.stride() == s.stride()
            torch.testing.assert_close(o, e.float(), rtol=1e-4, atol=2e-4)
    assert served > 40


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["3x3x3", "strided", "transposed 3/2"])
def test_threads_and_batch_change_no_outputs(name: str, row: str) -> None:
    sizes, weight, options = LAYERS[name]
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(5, *sizes[1:]), torch.randn(weight)
    before = torch.get_num_threads()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        alone = torch.cat([function_of(name)(one[None], w, **options) for one in x])
        try:
            for n_threads in (1, 2, 3):
                torch.set_num_threads(n_threads)
                assert torch.equal(function_of(name)(x, w, **options), alone)
        finally:
            torch.set_num_threads(before)
        assert hits.accelerated == len(x) + 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["3x3x3", "strided", "transposed 2/2"])
def test_what_is_not_finite_stays_where_stock_has_it(
    name: str, row: str, bad: float
) -> None:
    sizes, weight, options = LAYERS[name]
    torch.default_generator.manual_seed(0)
    x, w = torch.randn(sizes), torch.randn(weight)
    x.view(-1)[x.numel() // 3] = bad
    stock = function_of(name)(x, w, **options)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = function_of(name)(x, w, **options)
        assert hits.accelerated == 1
    assert torch.equal(ours.isfinite(), stock.isfinite())
    assert torch.equal(ours.isnan(), stock.isnan())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("of", ["x", "w", "both"])
def test_channels_last_3d_runs_stock(of: str, row: str) -> None:
    """One channel too, of which both layouts are the same memory."""
    for c in (1, 4):
        x, w = torch.randn(2, c, 4, 6, 6), torch.randn(8, c, 3, 3, 3)
        if of != "w":
            x = x.to(memory_format=torch.channels_last_3d)
        if of != "x":
            w = w.to(memory_format=torch.channels_last_3d)
        stock = with_gradients(F.conv3d, (x, w))
        with switching.accelerated(*OPS, row=row):
            hits = switching.hits("conv2d")
            ours = with_gradients(F.conv3d, (x, w))
            assert hits.accelerated == 0
            assert set(hits.forwarded) == {"layout"}
        for o, s in zip(ours, stock, strict=True):
            assert o.stride() == s.stride()
            assert torch.equal(o, s)


def test_other_rows_leave_volumes_alone() -> None:
    """Also where a volume has one plane, which might be taken for an image."""
    x, w = torch.randn(2, 16, 1, 16, 16), torch.randn(16, 16, 1, 3, 3)
    for row in switching.runnable_rows("conv2d"):
        if row not in {*ROWS, "scalar"} and not row.startswith("lowered"):
            with switching.accelerated(*OPS, row=row):
                hits = switching.hits("conv2d")
                F.conv3d(x, w, padding=(0, 1, 1))
                assert hits.forwarded == {"shape": 1}


@pytest.mark.parametrize("row", ROWS)
def test_unbatched_volumes_are_no_images(row: str) -> None:
    x, w = torch.randn(4, 5, 9, 9), torch.randn(8, 4, 3, 3, 3)
    stock = F.conv3d(x, w)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = F.conv3d(x, w)
        assert hits.accelerated == 1
        with pytest.raises(RuntimeError):
            torch.convolution(x, w, None, [1] * 3, [0] * 3, [1] * 3, False, [0] * 3, 1)
    torch.testing.assert_close(ours, stock)


@pytest.mark.parametrize("row", ROWS)
def test_what_is_not_dense_empty_or_float32(row: str) -> None:
    w = torch.randn(8, 4, 3, 3, 3)
    apart = torch.randn(2, 4, 5, 9, 18)[..., ::2]
    x = torch.randn(2, 4, 5, 9, 9, requires_grad=True)
    layer = nn.Conv3d(4, 8, 3)
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        ours = F.conv3d(apart, w)
        assert hits[0].forwarded == {"layout": 1}
        layer(x).sum().backward()  # an expanded gradient
        assert hits[1].accelerated == 2
        empty = F.conv3d(x[:0], w)
        F.conv3d(x.double(), w.double())
        assert hits[0].forwarded == {"layout": 1, "empty": 1, "dtype": 1}
        for kernel, padding in (((0, 3, 3), 0), ((9, 3, 3), 0), ((3, 3, 3), -1)):
            with pytest.raises(RuntimeError):
                F.conv3d(x, torch.randn(8, 4, *kernel), padding=padding)
    assert ours.stride() == F.conv3d(apart, w).stride()
    assert empty.shape == (0, 8, 3, 7, 7)


@pytest.mark.parametrize("row", ROWS)
def test_autocast_and_derivatives_are_torchs_own(row: str) -> None:
    double = nn.Conv3d(3, 4, 3, 2, 1).double()
    layer = copy.deepcopy(double).float()
    x = torch.randn(2, 3, 5, 7, 7)

    def loss(x: Tensor) -> Tensor:
        return (layer(x).square().sum() + layer(x).sum()) / 7

    def second() -> Tensor:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(loss(leaf), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    def of_all() -> tuple[Tensor, ...]:
        with torch.autocast("cpu", torch.bfloat16):
            narrow = layer(x)
        return second(), torch.func.grad(loss)(x), torch.vmap(loss)(x[None]), narrow

    stock = of_all()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = of_all()
        assert hits.accelerated > 0
        copied = copy.deepcopy(layer)(x)
    torch.testing.assert_close(ours, stock)
    torch.testing.assert_close(copied, layer(x))


def test_toggled_while_in_use() -> None:
    net = nn.Sequential(
        nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2),
        nn.Conv3d(8, 8, 3, padding=1), nn.ReLU(), nn.ConvTranspose3d(8, 2, 2, 2),
    ).eval()  # fmt: skip
    x = torch.randn(2, 1, 4, 12, 12)
    hold_in_threads(net, x, OPS, ROWS[-1])
