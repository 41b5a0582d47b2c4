"""Depthwise convolutions and their gradients, at level close."""

from __future__ import annotations

import copy
import itertools
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

import pai_torchacc as ptac

OPS = ("depthwise_conv2d", "depthwise_conv2d_backward")
ROWS = switching.runnable_rows(OPS[0])

NCHW, NHWC = torch.contiguous_format, torch.channels_last

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((2, 24, 14, 14), (3, 3), {"padding": 1}),
    "3x3 wide": ((1, 18, 9, 56), (3, 3), {"padding": 1}),
    "3x3 strips": ((1, 8, 40, 112), (3, 3), {"padding": 1}),
    "3x3 images": ((5, 6, 14, 14), (3, 3), {"padding": 1}),
    "3x3 tall": ((1, 3, 330, 20), (3, 3), {"padding": 1}),
    "3x3 padded": ((1, 6, 17, 30), (3, 3), {"padding": 4}),
    "3x9": ((2, 5, 17, 40), (3, 9), {"padding": (2, 5), "dilation": (1, 2)}),
    "3x3 strided": ((2, 24, 28, 28), (3, 3), {"padding": 1, "stride": 2}),
    "3x3 strided, wide": ((5, 3, 29, 71), (3, 3), {"padding": 1, "stride": 2}),
    "3x3 strided, even": ((2, 4, 36, 60), (3, 3), {"padding": 2, "stride": 2}),
    "3x3 strided, bare": ((1, 5, 16, 112), (3, 3), {"stride": 2}),
    "3x5 strided": ((2, 3, 20, 41), (3, 5), {"padding": (3, 1), "stride": 2}),
    "3x4 strided": ((2, 3, 20, 50), (3, 4), {"padding": 2, "stride": 2}),
    "3x4 in pairs": ((2, 3, 20, 50), (3, 4), {"padding": (2, 1), "stride": 2}),
    "3x4 far out": ((2, 3, 20, 50), (3, 4), {"padding": (5, 1), "stride": 2}),
    "3x9 in pairs": ((1, 3, 21, 75), (3, 9), {"padding": (1, 4), "stride": 2}),
    "5x1 in pairs": ((1, 3, 21, 40), (5, 1), {"padding": (2, 0), "stride": 2}),
    "5x5": ((2, 33, 7, 7), (5, 5), {"padding": 2}),
    "5x5 strided": ((1, 24, 15, 40), (5, 5), {"padding": 2, "stride": 2}),
    "5x5 strided, wide": ((1, 4, 33, 77), (5, 5), {"padding": 2, "stride": 2}),
    "7x7 strided": ((1, 4, 40, 66), (7, 7), {"padding": 3, "stride": 2}),
    "7x7": ((2, 20, 14, 20), (7, 7), {"padding": 3}),
    "7x7 narrow": ((1, 48, 7, 7), (7, 7), {"padding": 3}),
    "dilated": ((1, 24, 20, 20), (3, 3), {"padding": 2, "dilation": 2}),
    "atrous stride": ((1, 24, 21, 33), (3, 3), {"stride": 2, "dilation": 3}),
    "odd": ((1, 19, 11, 23), (2, 5), {"padding": (1, 3), "stride": (1, 3)}),
    "signal": ((2, 24, 60), (5,), {"padding": 2}),
    "dilated signal": ((2, 24, 61), (3,), {"stride": 2, "dilation": 4}),
}


@lru_cache(4)
def case(name: str, layout: torch.memory_format) -> contract.Case:
    """A convolution and its gradients; the same object for rows one after the other."""
    sizes, kernel, options = SHAPES[name]
    channels, function = sizes[1], F.conv1d if len(sizes) == 3 else F.conv2d
    scale = 1 / math.sqrt(math.prod(kernel))

    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*sizes, dtype=dtype)
        w = contract.draw(channels, 1, *kernel, dtype=dtype, scale=scale)
        b = contract.draw(channels, dtype=dtype).requires_grad_()
        if layout == NHWC:
            x, w = x.to(memory_format=NHWC), w.to(memory_format=NHWC)
        x.requires_grad_()
        w.requires_grad_()
        y = function(x, w, b, groups=channels, **options)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad, "weight": w.grad, "bias": b.grad}

    return run


@pytest.mark.parametrize("layout", [NCHW, NHWC], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", SHAPES)
def test_contract(name: str, layout: torch.memory_format) -> None:
    if layout == NHWC and "signal" in name:
        layout = NCHW
    for row in ROWS:
        with switching.accelerated(*OPS, row=row):
            hits = [switching.hits(op) for op in OPS]
            contract.hold(case(name, layout))
            n = hits[0].accelerated
            assert n > 0
            assert hits[1].accelerated == 2 * n


def depthwise(
    x: tuple[int, ...] = (1, 4, 9, 9), kernel: int = 3, **options: Any
) -> Any:
    to = options.pop("to", torch.float32)

    def call() -> Tensor:
        weight = torch.randn(x[1], 1, *[kernel] * (len(x) - 2)).to(to)
        function = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}[len(x)]
        return function(torch.randn(x).to(to), weight, groups=x[1], **options)

    return call


def every_second(groups: int) -> Tensor:
    x = torch.randn(1, groups, 9, 18)[..., ::2]
    return F.conv2d(x, torch.randn(groups, 1, 3, 3), groups=groups)


FORWARDED: dict[str, tuple[Any, str, str]] = {
    "double": (depthwise(to=torch.double), OPS[0], "dtype"),
    "bfloat16": (depthwise(to=torch.bfloat16), OPS[0], "dtype"),
    "10x10": (depthwise((1, 4, 12, 12), 10), OPS[0], "shape"),
    "not contiguous": (lambda: every_second(4), OPS[0], "layout"),
    "permuted signal": (
        lambda: F.conv1d(torch.randn(1, 9, 4).mT, torch.randn(4, 1, 3), groups=4),
        OPS[0],
        "layout",
    ),
    "no image": (depthwise((0, 4, 9, 9)), OPS[0], "empty"),
    "multiplier": (
        lambda: F.conv2d(torch.randn(1, 4, 9, 9), torch.randn(8, 1, 3, 3), groups=4),
        "conv2d",
        "shape",
    ),
    "grouped": (
        lambda: F.conv2d(torch.randn(1, 4, 9, 9), torch.randn(4, 2, 3, 3), groups=2),
        "conv2d",
        "shape",
    ),
    "transposed": (
        lambda: F.conv_transpose2d(
            torch.randn(1, 4, 9, 9), torch.randn(4, 1, 3, 3), groups=4
        ),
        "conv2d",
        "shape",
    ),
    "3-d": (depthwise((1, 4, 5, 5, 5)), "conv2d", "shape"),
}


@pytest.mark.parametrize("name", FORWARDED)
def test_is_forwarded_with_its_reason(name: str) -> None:
    program, op, reason = FORWARDED[name]
    torch.manual_seed(0)
    stock = program()
    with switching.accelerated("conv2d", *OPS):
        counts = {o: switching.hits(o) for o in ("conv2d", OPS[0])}
        torch.manual_seed(0)
        ours = program()
        assert counts.pop(op).forwarded == {reason: 1}
        for other in counts.values():
            assert not other.forwarded
    contract.exactly(ours, stock)


def test_complaints_are_torchs() -> None:
    x, w = torch.ones(1, 4, 9, 9), torch.ones(4, 1, 3, 3)
    calls = [
        lambda: F.conv2d(x, torch.ones(4, 2, 3, 3), groups=4),
        lambda: F.conv2d(x, w, torch.ones(5), groups=4),
        lambda: F.conv2d(x[..., :2], w, groups=4),
        lambda: F.conv2d(x, w, padding=-1, groups=4),
        lambda: F.conv2d(x, w, stride=0, groups=4),
        lambda: F.conv2d(x, w, dilation=0, groups=4),
        lambda: F.conv2d(x, w.double(), groups=4),
    ]

    def complaint(call: Any) -> str:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            call()
        return str(caught.value)

    stock = [complaint(call) for call in calls]
    with switching.accelerated(*OPS):
        assert [complaint(call) for call in calls] == stock


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["3x3", "3x3 strided", "5x5", "signal"])
def test_non_finite_pixels_stay_where_stock_has_them(name: str, value: float) -> None:
    sizes, kernel, options = SHAPES[name]
    function = F.conv1d if len(sizes) == 3 else F.conv2d

    def program() -> list[Tensor]:
        torch.manual_seed(0)
        x, w = torch.randn(sizes), torch.randn(sizes[1], 1, *kernel)
        x.view(-1)[17] = x.view(-1)[-1] = value
        x.requires_grad_()
        y = function(x, w, groups=sizes[1], **options)
        grad = torch.randn_like(y)
        grad.view(-1)[9] = value
        return [y.detach(), *torch.autograd.grad(y, x, grad)]

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        ours = program()
        assert hits.accelerated == 1
    for mine, theirs in zip(ours, stock, strict=True):
        assert not theirs.isfinite().all()
        torch.testing.assert_close(mine, theirs, equal_nan=True, rtol=1e-4, atol=1e-4)


ALIKE = "3x3 strips", "3x3 strided", "5x5", "7x7", "dilated", "signal"
STRIDED = "3x3 strided, wide", "5x5 strided, wide", "7x7 strided"


def convolved(n_images: int = 5) -> list[Tensor]:
    """Results and gradients of wide and narrow images, at strides and dilations."""
    found = []
    for name in (*ALIKE, *STRIDED):
        sizes, kernel, options = SHAPES[name]
        generator = torch.Generator().manual_seed(1)
        channels = 24
        x = torch.randn(n_images, channels, *sizes[2:], generator=generator)
        w = torch.randn(channels, 1, *kernel, generator=generator).requires_grad_()
        function = F.conv1d if len(sizes) == 3 else F.conv2d
        y = function(x.requires_grad_(), w, groups=channels, **options)
        grad = torch.randn(y.shape, generator=generator)
        found += [y.detach(), *torch.autograd.grad(y, [x, w], grad)]
    return found


def test_same_bits_whatever_the_threads() -> None:
    before = torch.get_num_threads()
    with switching.accelerated(*OPS):
        expected = convolved()
        try:
            for n in (1, 2, 3, 5):
                torch.set_num_threads(n)
                contract.exactly(convolved(), expected)
        finally:
            torch.set_num_threads(before)


def test_images_do_not_depend_on_each_other() -> None:
    w = torch.randn(40, 1, 3, 3)
    for width in (7, 14, 56):
        x = torch.randn(3, 40, width, width)
        with switching.accelerated(*OPS):
            all_at_once = F.conv2d(x, w, padding=1, groups=40)
            for i in range(3):
                one = F.conv2d(x[i : i + 1], w, padding=1, groups=40)
                contract.exactly(one, all_at_once[i : i + 1])


@pytest.mark.parametrize("name", STRIDED)
def test_nor_do_their_gradients(name: str) -> None:
    sizes, kernel, options = SHAPES[name]
    channels = sizes[1]
    x, w = torch.randn(3, *sizes[1:]), torch.randn(channels, 1, *kernel)

    def gradients(images: Tensor) -> list[Tensor]:
        images = images.clone().requires_grad_()
        y = F.conv2d(images, w, groups=channels, **options)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), images)]

    with switching.accelerated(*OPS):
        all_at_once = gradients(x)
        for i in range(3):
            alone = gradients(x[i : i + 1])
            contract.exactly(alone, [t[i : i + 1] for t in all_at_once])


@pytest.mark.parametrize("which", range(1, 8))
def test_gradients_of_some_only(which: int) -> None:
    def program() -> list[Tensor | None]:
        torch.manual_seed(0)
        conv = nn.Conv2d(20, 20, 3, padding=1, groups=20)
        x = torch.randn(2, 20, 12, 12, requires_grad=bool(which & 1))
        conv.weight.requires_grad_(bool(which & 2))
        conv.bias.requires_grad_(bool(which & 4))
        conv(x).square().sum().backward()
        return [x.grad, conv.weight.grad, conv.bias.grad]

    stock = program()
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        ours = program()
        assert hits.accelerated == bool(which & 1) + bool(which & 2)
    for mine, theirs in zip(ours, stock, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            assert mine.stride() == theirs.stride()
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_gradients_that_are_expanded_or_strided() -> None:
    w = torch.randn(20, 1, 3, 3, requires_grad=True)
    x = torch.randn(2, 20, 12, 12, requires_grad=True)
    grads = [
        torch.randn(1, 1, 12, 12).expand(2, 20, 12, 12),
        torch.randn(2, 20, 12, 12).to(memory_format=NHWC),
        torch.randn(2, 20, 12, 24)[..., ::2],
    ]
    for layout in (NCHW, NHWC):
        images = x.to(memory_format=layout)
        for grad in grads:
            y = F.conv2d(images, w, padding=1, groups=20)
            expected = torch.autograd.grad(y, [images, w], grad)
            with switching.accelerated(*OPS):
                hits = switching.hits(OPS[1])
                y = F.conv2d(images, w, padding=1, groups=20)
                ours = torch.autograd.grad(y, [images, w], grad)
                assert hits.accelerated == 2
            for mine, theirs in zip(ours, expected, strict=True):
                assert mine.stride() == theirs.stride()
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_strides_are_stocks(threads: int) -> None:
    """Of whatever layout the tensors are, and of sizes that leave it open."""
    sizes = [(2, 3, 1, 1), (3, 24, 1, 1), (1, 8, 9, 1), (2, 8, 1, 9), (2, 16, 9, 9)]

    def program() -> list[tuple[int, ...]]:
        found = []
        layouts = itertools.product((NHWC, NCHW), repeat=3)
        for (n, c, h, w), k, formats in itertools.product(sizes, (1, 3), layouts):
            x = torch.randn(n, h, w, c).permute(0, 3, 1, 2)
            x = x if formats[0] is NHWC else x.contiguous()
            weight = torch.randn(c, 1, k, k).to(memory_format=formats[1])
            grad = torch.randn(n, c, h, w).to(memory_format=formats[2])
            one, pad, no = [1, 1], [k // 2, k // 2], [0, 0]
            y = F.conv2d(x, weight, padding=pad, groups=c)
            grads = torch.ops.aten.convolution_backward(
                grad, x, weight, [c], one, pad, one, False, no, c, [True] * 3
            )
            found += [t.stride() for t in (y, *grads)]
        return found

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        stock = program()
        with switching.accelerated(*OPS):
            assert program() == stock
    finally:
        torch.set_num_threads(before)


LONG = [((1, 16, 3, 20000), NHWC), ((1, 8, 300000), NCHW)]
"""A line is a row of pixels, of which lanes are channels, or all of a signal."""


@pytest.mark.parametrize(("sizes", "layout"), LONG)
def test_sums_of_long_lines_go_on_in_double(
    sizes: tuple[int, ...], layout: torch.memory_format
) -> None:
    function = F.conv1d if len(sizes) == 3 else F.conv2d
    x = torch.randn(sizes).to(memory_format=layout)
    w, grad = torch.randn(sizes[1], 1, *[3] * (len(sizes) - 2)), torch.randn(sizes)

    def gradients(dtype: torch.dtype) -> tuple[Tensor, ...]:
        wanted = [t.to(dtype).requires_grad_() for t in (w, torch.zeros(sizes[1]))]
        y = function(x.to(dtype), *wanted, padding=1, groups=sizes[1])
        return torch.autograd.grad(y, wanted, grad.to(dtype))

    exact = gradients(torch.double)
    for row in ROWS:
        with switching.accelerated(*OPS, row=row):
            for ours, expected in zip(gradients(torch.float), exact, strict=True):
                assert (ours - expected).norm() < 4e-7 * expected.norm()


def test_double_backward() -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(2, 18, 9, 9, dtype=dtype).requires_grad_()
        w = contract.draw(18, 1, 3, 3, dtype=dtype, scale=0.3).requires_grad_()
        y = F.conv2d(x, w, padding=1, groups=18)
        grads = torch.autograd.grad(y.tanh().sum(), (x, w), create_graph=True)
        total = grads[0].square().sum() + grads[1].square().sum() / 100
        return dict(zip("xw", torch.autograd.grad(total, (x, w)), strict=True))

    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        contract.hold(case)
        assert hits.accelerated >= 2


def test_transforms_modes_and_autocast() -> None:
    x, w = torch.randn(3, 2, 20, 12, 12), torch.randn(20, 1, 3, 3)

    def loss(weight: Tensor) -> Tensor:
        return F.conv2d(x[0], weight, padding=1, groups=20).square().mean()

    def program() -> list[Tensor]:
        found = [
            torch.func.vmap(lambda image: F.conv2d(image, w, padding=1, groups=20))(x),
            torch.func.grad(loss)(w),
            torch.func.jvp(loss, (w,), (w,))[1],
        ]
        with torch.inference_mode():
            found.append(F.conv2d(x[0], w, padding="same", groups=20).clone())
        return found

    stock = program()
    with torch.autocast("cpu", torch.bfloat16):
        stock_lowered = F.conv2d(x[0], w, groups=20)
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = program()
        assert hits.accelerated >= 2
        with torch.autocast("cpu", torch.bfloat16):
            contract.exactly(F.conv2d(x[0], w, groups=20), stock_lowered)
        assert hits.forwarded["dtype"] >= 1
    for mine, theirs in zip(ours, stock, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_weights_are_read_at_each_call_and_copies_are_independent() -> None:
    conv, x = nn.Conv2d(32, 32, 5, padding=2, groups=32), torch.randn(2, 32, 14, 14)
    with torch.no_grad(), switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        for factor in (2, -1):
            conv.weight.detach().numpy()[:] *= factor
            expected = F.conv2d(
                x.double(), conv.weight.double(), None, 1, 2, 1, 32
            ) + conv.bias.double().view(-1, 1, 1)
            torch.testing.assert_close(conv(x).double(), expected, rtol=0, atol=1e-4)
            contract.exactly(copy.deepcopy(conv)(x), conv(x))
        assert hits.accelerated == 6


@pytest.mark.parametrize("op", ["conv2d", "depthwise_conv2d"])
def test_either_operator_may_be_excluded(op: str) -> None:
    """Both come through one override, which stays for the other."""
    other = {"conv2d": "depthwise_conv2d", "depthwise_conv2d": "conv2d"}[op]
    x = torch.randn(1, 16, 12, 12)
    calls = {
        "conv2d": lambda: F.conv2d(x, torch.ones(16, 16, 3, 3)),
        "depthwise_conv2d": lambda: F.conv2d(x, torch.ones(16, 1, 3, 3), groups=16),
    }
    with switching.pins(["conv2d", *OPS, "conv2d_backward"]):
        for options in ({"exclude": [op]}, {"include": [other]}):
            with ptac.enable("operator_fusion", **options):
                hits = {o: switching.hits(o) for o in calls}
                for call in calls.values():
                    call()
                assert hits[op].forwarded == {"excluded": 1}
                assert hits[op].accelerated == 0
                assert hits[other].forwarded.get("excluded", 0) == 0
                with ptac.enable("operator_fusion"):
                    hits = {o: switching.hits(o) for o in calls}
                    calls[op]()
                    assert "excluded" not in hits[op].forwarded
    assert not ptac.is_enabled("operator_fusion")


def test_without_either_the_override_leaves() -> None:
    from pai_torchacc import _C

    with switching.pins(["conv2d", *OPS, "conv2d_backward"]):
        with ptac.enable("operator_fusion", exclude=["conv2d"]):
            assert set(OPS) <= set(_C.override_installed())
            assert "conv2d" not in _C.override_installed()
        with ptac.enable("operator_fusion", exclude=["conv2d", "depthwise_conv2d"]):
            assert not {"conv2d", *OPS} & set(_C.override_installed())


def test_switching_while_others_convolve() -> None:
    """Each result is stock's or ours, whole; none is of both."""
    torch_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        stock = convolved(2)
        found: list[list[Tensor]] = []

        def loop() -> None:
            torch.set_num_threads(1)
            found.extend(convolved(2) for _ in range(8))

        with switching.accelerated(*OPS):
            ours = convolved(2)
            threads = [threading.Thread(target=loop) for _ in range(2)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                ptac.enable("operator_fusion", include=OPS)
                ptac.disable()
            for thread in threads:
                thread.join()
        assert len(found) == 16
        for results in found:
            for mine, one, other in zip(results, ours, stock, strict=True):
                assert contract.same_bits(mine, one) or contract.same_bits(mine, other)
    finally:
        torch.set_num_threads(torch_threads)
