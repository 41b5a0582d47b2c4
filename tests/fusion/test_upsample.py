"""Images enlarged, and pixels shuffled, behind torch's functions and modules."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

NEAREST = ("upsample_nearest2d", "upsample_nearest2d_backward")
SHUFFLES = ("pixel_shuffle", "pixel_unshuffle")
BACKWARD = "upsample_bilinear2d_backward"
OPS = (*NEAREST, "upsample_bilinear2d", BACKWARD, *SHUFFLES)

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 3e38, -3e38]
BIG = 1e30
"""Sums of larger numbers may cancel."""

ATEN = torch.ops.aten

rows = pytest.mark.parametrize("row", switching.runnable_rows("upsample_nearest2d"))


def images(*sizes: int) -> Tensor:
    torch.manual_seed(sum(sizes))
    x = torch.randn(sizes)
    n = min(len(SPECIAL), x.numel())
    x.view(-1)[:n] = torch.tensor(SPECIAL)[:n]
    return x


SIZES = [
    (2, 3, 7, 7),
    (1, 5, 1, 1),
    (1, 3, 16, 33),
    (2, 9, 20, 21),
    (1, 2, 70, 66),
    (1, 4, 3, 50),
]
RESIZES: list[dict[str, Any]] = [
    {"scale_factor": 2},
    {"scale_factor": 3},
    {"scale_factor": (1, 4)},
    {"scale_factor": 1},
    {"scale_factor": 1.7},
    {"scale_factor": 2.01},
    {"scale_factor": (2.9, 1.03)},
    {"scale_factor": 2.5, "recompute_scale_factor": True},
    {"size": (71, 80)},
]
LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(2, 3),
    lambda x: x[:, 1:],
    lambda x: x.to(memory_format=torch.channels_last)[:, :-1],
    lambda x: x[:, :1].expand(x.shape),
]


def nearest(x: Tensor, resize: dict[str, Any], is_sum: bool) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    y = F.interpolate(leaf, **resize)
    grad = torch.ones(()).expand(y.shape) if is_sum else torch.cos(y.detach())
    return [y.detach(), *torch.autograd.grad(y, leaf, grad)]


@pytest.mark.parametrize("sizes", SIZES)
@rows
def test_nearest_has_stocks_bits(row: str, sizes: tuple[int, ...]) -> None:
    with switching.accelerated(*NEAREST, row=row):
        for number, (layout, resize) in enumerate(itertools.product(LAYOUTS, RESIZES)):
            x = layout(images(*sizes))
            run = partial(nearest, x, resize, number % 3 == 0)
            with ptac.disabled():
                stock = run()
            hits = [switching.hits(op) for op in NEAREST]
            contract.exactly(run(), stock)
            grows = all(a >= b for a, b in zip(stock[0].shape, x.shape, strict=True))
            assert [h.accelerated for h in hits] == [grows, grows], (hits, resize)


@pytest.mark.parametrize("n", [3, 50, 64, 65])
def test_whole_factors_with_other_scales(n: int) -> None:
    """Torch's kernels differ in what they think of a scale at twice the size."""
    for channels, fmt in itertools.product(
        (3, 4), (torch.contiguous_format, torch.channels_last)
    ):
        x = images(1, channels, n, n).to(memory_format=fmt)
        for factor, scale in ((2, 2.1), (1, 1.4), (2, 5.0), (2, None), (2, -1.0)):
            out, back = [factor * n] * 2, list(x.shape)
            stock = ATEN.upsample_nearest2d(x, out, scale, scale)
            grad = ATEN.upsample_nearest2d_backward(stock, out, back, scale, scale)
            with switching.accelerated(*NEAREST):
                hits = [switching.hits(op) for op in NEAREST]
                ours = ATEN.upsample_nearest2d(x, out, scale, scale)
                contract.exactly(ours, stock)
                ours = ATEN.upsample_nearest2d_backward(stock, out, back, scale, scale)
                contract.exactly(ours, grad)
                assert [h.accelerated for h in hits] == [1, 1]


def bilinear(
    sizes: tuple[int, ...], layout: int, options: dict[str, Any]
) -> Callable[[torch.dtype], dict[str, Tensor]]:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = LAYOUTS[layout](contract.draw(*sizes, dtype=dtype))
        return {"y": F.interpolate(x, mode="bilinear", **options)}

    return case


@pytest.mark.parametrize("sizes", [(2, 3, 7, 7), (1, 9, 20, 21), (1, 2, 70, 66)])
@rows
def test_bilinear_is_close(row: str, sizes: tuple[int, ...]) -> None:
    sizes_given: list[dict[str, Any]] = [
        {"scale_factor": 2},
        {"scale_factor": 1.7},
        {"size": (71, 80), "align_corners": True},
    ]
    for layout, options in itertools.product((0, 1, 2), sizes_given):
        with switching.accelerated(*OPS, row=row):
            hits = switching.hits("upsample_bilinear2d")
            contract.hold(bilinear(sizes, layout, options))
            assert hits.accelerated
            assert not set(hits.forwarded) - {"disabled in this thread", "dtype"}


@pytest.mark.parametrize("threads", [1, 2])
@rows
def test_bilinear_of_special_numbers(row: str, threads: int) -> None:
    """What is not finite has its place and kind: a weight of 0 makes it NaN.

    Weights are rounded at the size of an index, so that a version of torch that fuses
    other multiply-adds differs by 1e-5 of the largest element.
    """
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with switching.accelerated(*OPS, row=row):
            for sizes, layout in itertools.product(SIZES, LAYOUTS):
                compare_special(layout(images(*sizes)))
    finally:
        torch.set_num_threads(before)


def compare_special(x: Tensor) -> None:
    x = torch.where((x.abs() > BIG) & x.isfinite(), 1, x)
    for factor, align in itertools.product((1, 2, (3, 1), 1.5), (False, True)):
        run = partial(
            F.interpolate, x, scale_factor=factor, mode="bilinear", align_corners=align
        )
        with ptac.disabled():
            stock = run()
        ours = run()
        assert ours.stride() == stock.stride()
        torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-4, equal_nan=True)


GRADIENT_SIZES = [*SIZES, (2, 33, 5, 6), (1, 70, 3, 9), (3, 5, 9, 1)]


@pytest.mark.parametrize("threads", [1, 2])
@rows
def test_bilinear_gradients_have_stocks_bits(row: str, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with switching.accelerated(BACKWARD, row=row):
            for sizes, layout in itertools.product(GRADIENT_SIZES, (0, 1, 2, 5)):
                compare_gradients(sizes, LAYOUTS[layout])
    finally:
        torch.set_num_threads(before)


def compare_gradients(
    sizes: tuple[int, ...], layout: Callable[[Tensor], Tensor]
) -> None:
    n, channels, h, w = sizes
    for out, align, scale in itertools.product(
        ((2 * h, 2 * w), (h, 3 * w), (3 * h + 1, w), (h + 3, 2 * w + 5)),
        (False, True),
        (None, 1.3, 0.0),
    ):
        grad = layout(images(n, channels, *out))
        given = (grad, grad.shape[2:], sizes, align, scale, scale)
        if grad.shape[2] < h or grad.shape[3] < w:
            continue
        with ptac.disabled():
            stock = ATEN.upsample_bilinear2d_backward(*given)
        hits = switching.hits(BACKWARD)
        ours = ATEN.upsample_bilinear2d_backward(*given)
        assert hits.accelerated == 1, (hits, out)
        contract.exactly(ours, stock)
        assert ours.stride() == stock.stride()


@rows
def test_bilinear_gradients_beside_float64(row: str) -> None:
    """Twice the size: weights are what they are in float64."""
    with switching.accelerated(BACKWARD, row=row):
        x = torch.randn(2, 5, 6, 7)
        for align, fmt in itertools.product(
            (False, True), (torch.contiguous_format, torch.channels_last)
        ):
            grad = torch.randn(2, 5, 12, 14).to(memory_format=fmt)

            def gradient(x: Tensor, grad: Tensor = grad, align: bool = align) -> Tensor:
                leaf = x.detach().requires_grad_()
                y = F.interpolate(
                    leaf, scale_factor=2, mode="bilinear", align_corners=align
                )
                return torch.autograd.grad(y, leaf, grad.to(x.dtype))[0]

            hits = switching.hits(BACKWARD)
            ours = gradient(x)
            assert hits.accelerated == 1
            torch.testing.assert_close(
                ours.double(), gradient(x.double()), rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
@rows
def test_shuffles_have_stocks_bits(row: str, factor: int) -> None:
    square = factor * factor
    serves = row == "scalar" or 2 <= factor <= 4
    with switching.accelerated(*SHUFFLES, row=row):
        for h, w, batch in itertools.product(
            (1, 5), (1, 7, 16, 37), ((), (2,), (2, 3))
        ):
            x = images(*batch, 2 * square, h, w)
            y = images(*batch, 2, h * factor, w * factor)
            run = partial(shuffled_both_ways, x, y, factor)
            with ptac.disabled():
                stock = run()
            hits = [switching.hits(op) for op in SHUFFLES]
            contract.exactly(run(), stock)
            if serves:
                assert [h.accelerated for h in hits] == [1, 2], hits


def shuffled_both_ways(x: Tensor, y: Tensor, factor: int) -> list[Tensor]:
    leaf = x.detach().requires_grad_()
    shuffled = F.pixel_shuffle(leaf, factor)
    (grad,) = torch.autograd.grad(shuffled, leaf, y)
    return [shuffled.detach(), grad, F.pixel_unshuffle(y, factor)]


def others() -> list[Callable[[], Any]]:
    """Calls that are stock's, and its errors."""
    x, shuffled = images(2, 8, 6, 6), partial(F.pixel_shuffle, upscale_factor=2)
    backward = ATEN.upsample_nearest2d_backward
    bilinear_backward = ATEN.upsample_bilinear2d_backward
    return [
        lambda: F.interpolate(x, scale_factor=0.5),
        lambda: F.interpolate(x.double(), scale_factor=2),
        lambda: F.interpolate(x.bfloat16(), scale_factor=2, mode="bilinear"),
        lambda: F.interpolate(x.byte(), scale_factor=2),
        lambda: F.interpolate(x[:0], scale_factor=2),
        lambda: F.interpolate(x, size=(0, 3)),
        lambda: F.interpolate(x[:, :, :0], size=(3, 3)),
        lambda: ATEN.upsample_nearest2d(x, [12, 12, 12], None, None),
        lambda: ATEN.upsample_nearest2d(x, [13, 13], 0.1, 0.1),
        lambda: ATEN.upsample_nearest2d(x[0], [12, 12], None, None),
        lambda: backward(x, [6, 6], [2, 8, 3], None, None),
        lambda: backward(x, [6, 6], [2, 7, 3, 3], None, None),
        lambda: backward(x, [5, 6], [2, 8, 3, 3], None, None),
        lambda: bilinear_backward(x.double(), [6, 6], [2, 8, 3, 3], False, None, None),
        lambda: bilinear_backward(
            x.bfloat16(), [6, 6], [2, 8, 3, 3], False, None, None
        ),
        lambda: bilinear_backward(x, [6, 6], [2, 8, 7, 3], False, None, None),
        lambda: bilinear_backward(x, [6, 6], [2, 7, 3, 3], False, None, None),
        lambda: bilinear_backward(x[:0], [6, 6], [0, 8, 3, 3], False, None, None),
        lambda: shuffled(x.to(memory_format=torch.channels_last)),
        lambda: shuffled(x.double()),
        lambda: shuffled(x[:, :7]),
        lambda: shuffled(x[0, 0]),
        lambda: shuffled(x[:0]),
        lambda: F.pixel_shuffle(x, 0),
        lambda: F.pixel_shuffle(x, -1),
        lambda: ATEN.pixel_shuffle(x, 1 << 20),
        lambda: F.pixel_unshuffle(x, 4),
    ]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]

    stock = contract.said(call)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(contract.said(call), stock)
        assert not any(h.accelerated for h in hits), hits


def test_derivatives_and_transforms() -> None:
    x = torch.linspace(-3, 3, 2 * 4 * 6 * 6).view(2, 4, 6, 6)

    def shuffle(x: Tensor) -> Tensor:
        return F.pixel_shuffle(x[None], 2).square().sum()

    def enlarge(x: Tensor) -> Tensor:
        return F.interpolate(x[None], scale_factor=2).square().sum()

    def all_of_them() -> list[Tensor]:
        found = [torch.func.vmap(torch.func.grad(f))(x) for f in (shuffle, enlarge)]
        leaf = x.detach().requires_grad_()
        y = F.interpolate(leaf, scale_factor=3).pow(3)
        (grad,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        found += [grad.detach(), *torch.autograd.grad(grad.square().sum(), leaf)]
        back = partial(ATEN.upsample_bilinear2d_backward, output_size=[6, 6])
        back = partial(back, input_size=[2, 4, 4, 3], align_corners=False)
        (grad,) = torch.autograd.grad(back(leaf).square().sum(), leaf)
        return [*found, grad, torch.func.vmap(back)(torch.stack([x, -x]))]

    stock = all_of_them()
    with switching.accelerated(*NEAREST, BACKWARD, *SHUFFLES):
        hits = [switching.hits(op) for op in (*NEAREST, BACKWARD, *SHUFFLES)]
        contract.exactly(all_of_them(), stock)
        assert all(h.accelerated for h in hits), hits


def test_modules_copies_autocast_threads_and_toggling() -> None:
    model = nn.Sequential(
        nn.Upsample(scale_factor=2),
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(4),
    )
    x = torch.randn(2, 4, 16, 16)
    stock = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(x)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in (OPS[0], OPS[2], *SHUFFLES)]
        torch.testing.assert_close(copy.deepcopy(model)(x), stock)
        assert [h.accelerated for h in hits] == [1, 1, 1, 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.testing.assert_close(model(x), stock_cast)
        with ptac.disabled():
            contract.exactly(model(x), stock)
        results = switching.in_threads(lambda: model(x))
    for y in results():
        torch.testing.assert_close(y, stock)
