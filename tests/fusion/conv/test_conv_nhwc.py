"""Convolutions of 3x3 and 5x5 kernels in channels_last, and of one operand in it."""

from __future__ import annotations

import copy
import itertools
import math
from functools import lru_cache
from typing import Any

import contract
import convnets
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPS = ("conv2d", "conv2d_backward")
ROWS = sorted(
    row
    for row in {row for op in OPS for row in switching.runnable_rows(op)}
    if row.startswith("winograd")
)
LAST, PLAIN = torch.channels_last, torch.contiguous_format
MIXES = [(LAST, LAST), (LAST, PLAIN), (PLAIN, LAST)]
SHAPES = [*convnets.SHAPES, (1, 160, 256, 6, 7)]


def size_of(row: str) -> int:
    return 5 if "5x5" in row else 3


@lru_cache(3)
def case(
    shape: convnets.Shape, size: int, mix: tuple[Any, Any], bias: bool = True
) -> contract.Case:
    n, c, k, h, w = shape

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(n, c, h, w, dtype=dtype).to(memory_format=mix[0])
        scale = 1 / (size * math.sqrt(c))
        weight = contract.draw(k, c, size, size, dtype=dtype, scale=scale)
        weight = weight.to(memory_format=mix[1]).requires_grad_()
        b = contract.draw(k, dtype=dtype).requires_grad_() if bias else None
        y = F.conv2d(x.requires_grad_(), weight, b, padding=size // 2)
        grad = contract.draw(n, k, *y.shape[2:], dtype=dtype)
        y.backward(grad.to(memory_format=mix[0]))
        found = {"y": y, "x": x.grad, "weight": weight.grad}
        return found | ({} if b is None else {"bias": b.grad})

    return run


def takes(row: str, shape: convnets.Shape) -> bool:
    """Weight gradients are close in 4x4 tiles where stock, too, sums many pixels."""
    n, c, _, h, w = shape
    if "4x4" in row:
        return n * h * w >= 8192 * torch.get_num_threads()
    return c <= 128 if "5x5" in row else True


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("mix", MIXES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(row: str, shape: convnets.Shape, mix: tuple[Any, Any]) -> None:
    ops = [op for op in OPS if row in switching.runnable_rows(op)]
    with switching.accelerated(*ops, row=row):
        hits = {op: switching.hits(op) for op in ops}
        contract.hold(case(shape, size_of(row), mix, bias=mix[0] is LAST))
    for op in ops:
        assert (hits[op].accelerated >= 1) == takes(row, shape)


@pytest.mark.parametrize("row", [row for row in ROWS if "4x4" in row])
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_fewest_pixels_of_4x4_tiles(row: str, threads: int) -> None:
    """Stock's threads sum fewer pixels each, with less error."""
    before, many = torch.get_num_threads(), (2 * threads, 16, 16, 64, 64)
    few = (2 * threads, 16, 16, 63, 64)
    try:
        torch.set_num_threads(threads)
        for shape in (few, many):
            with switching.accelerated("conv2d_backward", row=row):
                hits = switching.hits("conv2d_backward")
                contract.hold(case(shape, 3, (LAST, LAST), bias=False))
                assert (hits.accelerated > 0) == (shape == many)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("shape", [(3, 40, 70, 13, 21), (1, 256, 260, 7, 7)], ids=str)
def test_both_layouts_have_the_same_bits(shape: convnets.Shape, threads: int) -> None:
    """Those of sums over the batch, too: threads share them out alike."""
    before, found = torch.get_num_threads(), []
    try:
        torch.set_num_threads(threads)
        for mix in (PLAIN, PLAIN), (LAST, LAST), (LAST, LAST), (LAST, PLAIN):
            with switching.accelerated(*OPS):
                torch.manual_seed(0)
                results = plain(shape, mix)
            found.append({name: r.contiguous() for name, r in results.items()})
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        contract.exactly(other, found[0])


def plain(shape: convnets.Shape, mix: tuple[Any, Any]) -> dict[str, Tensor]:
    n, c, k, h, w = shape
    x = torch.randn(n, c, h, w).to(memory_format=mix[0]).requires_grad_()
    weight = torch.randn(k, c, 3, 3).to(memory_format=mix[1]).requires_grad_()
    y = F.conv2d(x, weight, padding=1)
    grads = torch.autograd.grad(y, (x, weight), torch.randn(y.shape))
    return {"y": y.detach(), "x": grads[0], "weight": grads[1]}


AMBIGUOUS = [
    (2, 20, 1, 9, 9), (2, 1, 20, 9, 9), (2, 20, 24, 1, 1), (2, 1, 1, 9, 9),
    (1, 20, 24, 9, 1), (2, 20, 24, 1, 9), (1, 1, 24, 9, 9), (1, 1, 1, 40, 40),
]  # fmt: skip


@pytest.mark.parametrize("shape", [*AMBIGUOUS, (2, 20, 24, 9, 9)], ids=str)
def test_strides_are_stocks(shape: convnets.Shape) -> None:
    """Of whatever layout the images, the weight and the gradient are."""

    def program() -> list[tuple[int, ...]]:
        n, c, k, h, w = shape
        found = []
        for of_x, of_w, of_grad in itertools.product((LAST, PLAIN), repeat=3):
            x = torch.randn(n, c, h, w).to(memory_format=of_x)
            weight = torch.randn(k, c, 3, 3).to(memory_format=of_w)
            grad = torch.randn(n, k, h, w).to(memory_format=of_grad)
            one, no = [1, 1], [0, 0]
            y = F.conv2d(x, weight, padding=1)
            grads = torch.ops.aten.convolution_backward(
                grad, x, weight, [k], one, one, one, False, no, 1, [True] * 3
            )
            found += [t.stride() for t in (y, *grads)]
        return found

    stock = program()
    with switching.accelerated(*OPS):
        assert program() == stock


@pytest.mark.parametrize("groups", [1, 24])
def test_without_onednn_stocks_strides_are_others(groups: int) -> None:
    """Of 16 images and more, and of groups: such calls in channels_last are stock's."""
    x, w = torch.randn(16, 24, 9, 9), torch.randn(24, 24 // groups, 3, 3)
    ops = [*OPS, "depthwise_conv2d", "depthwise_conv2d_backward"]

    def program(layout: torch.memory_format) -> list[Tensor]:
        args = (x.to(memory_format=layout).requires_grad_(), w.clone().requires_grad_())
        y = F.conv2d(*args, padding=1, groups=groups)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), args)]

    with torch.backends.mkldnn.flags(enabled=False):
        stock = program(LAST)
        strides = [t.stride() for t in program(PLAIN)]
        with switching.accelerated(*ops):
            hits = [switching.hits(op) for op in ops]
            ours = program(LAST)
            assert (
                sum(h.forwarded.get("mode or transform active", 0) for h in hits) == 3
            )
            assert [t.stride() for t in program(PLAIN)] == strides
            assert sum(h.accelerated for h in hits) == 3
    contract.exactly(ours, stock)
    assert [t.stride() for t in ours] == [t.stride() for t in stock]


def images(n: int = 16) -> tuple[Tensor, Tensor, Tensor]:
    made = (
        torch.randn(n, 24, 40, 40),
        torch.randn(24, 24, 3, 3),
        torch.randn(n, 24, 40, 40),
    )
    x, w, grad = (t.to(memory_format=LAST) for t in made)
    return x, w, grad


def results(x: Tensor, w: Tensor, grad: Tensor) -> dict[str, Tensor]:
    x = x.clone().requires_grad_()
    y = F.conv2d(x, w, padding=1)
    return {"y": y.detach(), "x": torch.autograd.grad(y, x, grad)[0]}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_where_stocks_is(value: float) -> None:
    x, w, grad = images()
    for made in (x, grad):
        for place in ((1, 2, 17, 22), (2, 20, 0, 39)):
            made[place] = value
    stock = results(x, w, grad)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = results(x, w, grad)
        assert [h.accelerated for h in hits] == [1, 1]
    for name, theirs in stock.items():
        mine, is_whole = ours[name], theirs.isfinite()
        assert not is_whole.all()
        assert torch.equal(mine.isfinite(), is_whole)
        contract.exactly(mine[~is_whole], theirs[~is_whole])
        torch.testing.assert_close(
            mine[is_whole], theirs[is_whole], rtol=1e-4, atol=1e-4
        )


def test_next_to_a_giant() -> None:
    x, w, grad = images()
    x[1, 2, 17, 22] = grad[1, 2, 17, 22] = 1e20
    sees = torch.zeros(16, 1, 40, 40, dtype=torch.bool)
    sees[1, 0, 16:19, 21:24] = True
    exact = results(x.double(), w.double(), grad.double())
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        ours = results(x, w, grad)
        assert hits.accelerated == 1
    for name, found in ours.items():
        assert (found - exact[name]).abs().masked_fill(sees, 0).max() < 3e-4


def ones(w: Tensor) -> Tensor:
    return torch.ones_like(w)


def whole(w: Tensor) -> Tensor:
    return (w * 3).round()


def boxes(w: Tensor) -> Tensor:
    return w[:, :, :1, :1].expand_as(w).contiguous(memory_format=LAST)


@pytest.mark.parametrize("weights", [ones, whole, boxes])
def test_what_stock_sums_better_goes_there(weights: Any) -> None:
    x, w, grad = images()
    stock = results(x, weights(w), grad)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = results(x, weights(w), grad)
        for h in hits:
            assert h.forwarded == {"values": 1}
    contract.exactly(ours, stock)


def test_images_that_are_mostly_zero_or_exploding() -> None:
    x, w, grad = images()
    for spoil in (lambda t: t * (torch.rand_like(t) > 0.98), lambda t: (4 * t).exp()):
        with switching.accelerated(*OPS):
            hits = [switching.hits(op) for op in OPS]
            results(spoil(x), w, spoil(grad))
            for h in hits:
                assert h.forwarded == {"values": 1}


def test_a_channel_of_zeros_says_nothing_of_the_others() -> None:
    """Values at even steps through NHWC memory may all be of one channel."""
    x, w = torch.randn(4, 64, 16, 16), torch.randn(64, 64, 3, 3)
    x[:, 32] = w[:, 32] = 0
    with switching.accelerated("conv2d"):
        ours = F.conv2d(x.to(memory_format=LAST), w.to(memory_format=LAST), padding=1)
        contract.exactly(ours.contiguous(), F.conv2d(x, w, padding=1))


def gaps(x: Tensor) -> Tensor:
    return torch.cat([x, x], 1)[:, ::2]


def test_gaps_go_to_stock_and_gradients_with_gaps_do_not() -> None:
    x, w, grad = images(2)
    stock = F.conv2d(gaps(x), w, padding=1)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(F.conv2d(gaps(x), w, padding=1), stock)
        assert hits[0].forwarded == {"layout": 1}
        x.requires_grad_()
        F.conv2d(x, w, padding=1).sum().backward()
        F.conv2d(x, w, padding=1).backward(gaps(grad))
        assert (hits[0].accelerated, hits[1].accelerated) == (2, 2)
    expected = torch.autograd.grad(
        F.conv2d(x, w, padding=1), x, gaps(grad) + torch.ones_like(grad)
    )[0]
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("chain", ["n", "r", "nr", "nrp"])
@pytest.mark.parametrize("shape", [*SHAPES[:2], (2, 20, 24, 3, 2)])
def test_chain(chain: str, shape: convnets.Shape) -> None:
    """Norm, ReLU and pooling in the same call; the modules' strides."""
    n, c, k, h, w = shape

    def program(dtype: torch.dtype) -> dict[str, Tensor]:
        modules: list[nn.Module] = [nn.Conv2d(c, k, 3, padding=1)]
        norm = nn.BatchNorm2d(k).eval()
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.3, 2)
        made = {"n": norm, "r": nn.ReLU(), "p": nn.MaxPool2d(2)}
        net = nn.Sequential(*modules, *(made[name] for name in chain))
        x = contract.draw(n, c, h, w, dtype=dtype).to(memory_format=LAST)
        with torch.no_grad():
            return {"y": net.to(dtype=dtype, memory_format=LAST)(x)}

    torch.manual_seed(0)
    strides = program(torch.float32)["y"].stride()
    with switching.accelerated("conv2d"):
        hits = switching.hits("conv2d")
        assert program(torch.float32)["y"].stride() == strides
        contract.hold(program)
        assert hits.accelerated >= 1


def test_programs() -> None:
    """Double backward, transforms, copies, autocast and a switch in between."""
    net = nn.Conv2d(20, 24, 3, padding=1).to(memory_format=LAST)
    x = torch.randn(2, 20, 12, 12).to(memory_format=LAST).requires_grad_()
    weight = net.weight.detach()

    def loss(w: Tensor) -> Tensor:
        return F.conv2d(x, w, padding=1).square().mean()

    def twice() -> Tensor:
        (grad,) = torch.autograd.grad(loss(net.weight), net.weight, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), x)[0]

    def program() -> list[Tensor]:
        stack = torch.stack([x, x + 1]).detach()
        with torch.autocast("cpu", torch.bfloat16):
            narrow = net(x)
        return [
            twice(), copy.deepcopy(net)(x), net(x[0]), narrow.float(),
            torch.func.vmap(lambda image: F.conv2d(image, weight, padding=1))(stack),
            torch.func.grad(loss)(weight),
        ]  # fmt: skip

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        ours = program()
        assert hits.accelerated >= 5
        y = net(x)
    grads = [torch.autograd.grad(z.square().mean(), net.weight) for z in (y, net(x))]
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)
