"""Padding behind F.pad and torch.nn's modules, with stock's bits."""

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

CONSTANT = "constant_pad_nd"
REFLECTION = ("reflection_pad", "reflection_pad_backward")
REPLICATION = ("replication_pad", "replication_pad_backward")
OPS = (CONSTANT, *REFLECTION, *REPLICATION)
MODES = {
    CONSTANT: "constant",
    REFLECTION[0]: "reflect",
    REPLICATION[0]: "replicate",
}

numbers = contract.draw_with_extremes

ATEN = torch.ops.aten
NHWC, NDHWC = torch.channels_last, torch.channels_last_3d

rows = pytest.mark.parametrize("row", switching.runnable_rows(CONSTANT))


def padded(x: Tensor, pad: tuple[int, ...], **options: Any) -> list[Tensor]:
    """A result and its gradient."""
    leaf = x.detach().requires_grad_()
    y = F.pad(leaf, pad, **options)
    return [y.detach(), *torch.autograd.grad(y, leaf, numbers(*y.shape))]


def compare(x: Tensor, pad: tuple[int, ...], **options: Any) -> None:
    run = partial(padded, x, pad, **options)
    with ptac.disabled():
        stock = run()
    ours = run()
    contract.exactly(ours, stock)
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride(), (x.shape, x.stride(), pad)


CONSTANT_CALLS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 14, 14), (1, 1, 1, 1)),
    ((1, 3, 21, 40), (3, 2, 1, 4)),
    ((2, 5, 9, 33), (0, 1, 0, 1)),
    ((2, 5, 9, 33), (0, 0, 2, 0)),
    ((2, 5, 9, 33), (-1, 2, 1, -3)),
    ((2, 5, 9, 33), (-2, -3)),
    ((4, 3, 6, 7), (1, 0, 0, 2, 0, 3)),
    ((4, 3, 6, 7), (0, 0, 0, 2, 0, 0, 1, 1)),
    ((2, 8, 100), (4, 0)),
    ((2, 8, 100), (0, 0, 0, 5)),
    ((70,), (3, 4)),
    ((2, 3, 4, 5, 6), (1, 1, 2, 0, 0, 1)),
    ((2, 3, 4, 5, 6), (1, 1, 0, 0, 0, 1)),
    ((1, 1, 2, 2), (2, 2, 2, 2)),
    ((3, 1, 5, 1), (2, 2, 2, 2)),
    ((1, 3, 1, 9), (2, 2, 0, 3)),
]


VALUES = (0, -0.0, 2.5, float("nan"), float("inf"), 3, 1e-50, (1 << 60) + (1 << 36) + 1)


@pytest.mark.parametrize(("sizes", "pad"), CONSTANT_CALLS)
@rows
def test_constants_have_stocks_bits(
    row: str, sizes: tuple[int, ...], pad: tuple[int, ...]
) -> None:
    with switching.accelerated(*OPS, row=row):
        for value in VALUES:
            hits = switching.hits(CONSTANT)
            compare(numbers(*sizes), pad, value=value)
            assert hits.accelerated == 1 + (len(sizes) > 1), hits


@rows
def test_constants_in_other_layouts(row: str) -> None:
    with switching.accelerated(*OPS, row=row):
        for sizes, fmt in (((2, 5, 7, 6), NHWC), ((2, 3, 4, 5, 6), NDHWC)):
            x = numbers(*sizes).to(memory_format=fmt)
            for pad in ((1, 1, 1, 1), (0, 1, 0, 1), (0, 0, 0, 0, 1, 2), (1, -1)):
                hits = switching.hits(CONSTANT)
                compare(x, pad)
                assert hits.accelerated, (sizes, pad)
        x = numbers(3, 6, 9, 8)
        for layout in (x.transpose(2, 3), x[:, 1:], x[:, :1].expand(x.shape)):
            compare(layout, (1, 2, 1, 0))


MIRRORED_CALLS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((2, 3, 14, 14), (1, 1, 1, 1)),
    ((1, 3, 21, 40), (3, 2, 1, 4)),
    ((2, 2, 5, 6), (5, 5, 4, 4)),
    ((3, 7, 33), (0, 2, 0, 0)),
    ((2, 8, 100), (4, 9)),
    ((5, 37), (36, 36)),
    ((3, 4, 1, 50), (2, 2, 0, 0)),
    ((8, 16, 56, 57), (1, 1, 2, 2)),
    ((8, 40, 199), (4, 4)),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@rows
def test_edges_have_stocks_bits(row: str, mode: str, threads: int) -> None:
    before = torch.get_num_threads()
    ops = {"reflect": REFLECTION, "replicate": REPLICATION, "circular": ()}[mode]
    try:
        torch.set_num_threads(threads)
        with switching.accelerated(*OPS, row=row):
            for sizes, pad in MIRRORED_CALLS:
                hits = [switching.hits(op) for op in ops]
                compare(numbers(*sizes), pad, mode=mode)
                assert [h.accelerated for h in hits] == [1] * len(ops), (sizes, hits)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_edges_in_other_layouts(mode: str) -> None:
    x = numbers(3, 6, 9, 8)
    layouts = (x.to(memory_format=NHWC), x.transpose(2, 3), x[:, 1:], x[..., ::2])
    with switching.accelerated(*OPS):
        for layout in (*layouts, x[:, :1].expand(x.shape)):
            compare(layout, (1, 2, 1, 0), mode=mode)


def test_second_derivatives() -> None:
    for mode, pad in itertools.product(("constant", "reflect", "replicate"), (1, 2)):

        def function(x: Tensor, mode: str = mode, pad: int = pad) -> Tensor:
            return F.pad(x, (pad, 1, 0, pad), mode=mode).sin()

        x = torch.randn(1, 2, 4, 5, dtype=torch.double, requires_grad=True)
        with switching.accelerated(*OPS):
            assert torch.autograd.gradgradcheck(function, (x,))
        single = x.detach().float().requires_grad_()
        with switching.accelerated(*OPS):
            (grad,) = torch.autograd.grad(function(single).sum(), single)
        (expected,) = torch.autograd.grad(function(x).sum(), x)
        torch.testing.assert_close(grad.double(), expected, rtol=1e-5, atol=1e-5)


def others() -> list[Callable[[], Any]]:
    """Calls that are stock's, and its errors."""
    x = numbers(2, 3, 6, 7)
    reflect = partial(F.pad, mode="reflect")
    replicate = partial(F.pad, mode="replicate")
    backward = ATEN.reflection_pad2d_backward
    return [
        lambda: F.pad(x.double(), (1, 1)),
        lambda: F.pad(x.bfloat16(), (1, 1)),
        lambda: F.pad(x.long(), (1, 1), value=3),
        lambda: F.pad(x.cfloat(), (1, 1), value=3),
        lambda: F.pad(x[:0], (1, 1)),
        lambda: F.pad(x, (0, 0)),
        lambda: F.pad(x, (-3, -4)),
        lambda: F.pad(x[:1, :1], (-3, -3, -3, -2)),
        lambda: F.pad(x, (0, 0, 0, 0, 0, 0, -1, 0)),
        lambda: F.pad(x, (-8, 9)),
        lambda: F.pad(x, (-9, 1)),
        lambda: ATEN.constant_pad_nd(x, [1, 1, 1], 0),
        lambda: ATEN.constant_pad_nd(x, [1] * 10, 0),
        lambda: ATEN.constant_pad_nd(x, [], 0),
        lambda: ATEN.constant_pad_nd(x, [1 << 62, 1 << 62], 0),
        lambda: ATEN.constant_pad_nd(x, [1 << 40, 0], 0),
        lambda: ATEN.constant_pad_nd(torch.tensor(1.0), [], 0),
        lambda: reflect(x, (7, 0, 0, 0)),
        lambda: reflect(x, (0, 0, 6, 0)),
        lambda: reflect(x.double(), (1, 1, 1, 1)),
        lambda: reflect(x[:0], (1, 1, 1, 1)),
        lambda: replicate(x, (-1, 1, 1, 1)),
        lambda: replicate(x[None], (1, 1, 1, 1, 1, 1)),
        lambda: F.pad(x, (1, 1), value=1e39),
        lambda: F.pad(x, (1, 1), value=-3.4028235e38),
        lambda: F.pad(x[:1].transpose(0, 1), (0, -1, 0, -1)),
        lambda: F.pad(x[:, :1].transpose(0, 1), (-1, 0)),
        lambda: ATEN.replication_pad2d(x, [1, 1]),
        lambda: ATEN.reflection_pad1d(x[0], [1, 1, 1, 1]),
        lambda: ATEN.replication_pad1d(x[0], [1, 1, 1, 1]),
        lambda: ATEN.reflection_pad2d(x[0], [1, 1]),
        lambda: ATEN.replication_pad2d(x[0], [1, 1]),
        lambda: ATEN.reflection_pad1d_backward(x, x[:, :, 1:-1, 1:-1], [1] * 4),
        lambda: ATEN.replication_pad2d_backward(x[0], x[0, :, :, 1:-1], [1, 1]),
        lambda: ATEN.reflection_pad1d(x[0, 0, 0], [1, 1]),
        lambda: backward(x, x, [1, 1, 1, 1]),
        lambda: backward(x, x[:, :, 1:-1, 1:-1].double(), [1, 1, 1, 1]),
        lambda: backward(x, x[:, :2, 1:-1, 1:-1], [1, 1, 1, 1]),
    ]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]
    with switching.accelerated(*OPS):
        with ptac.disabled():
            stock = outcome(call)
        hits = [switching.hits(op) for op in OPS]
        ours = outcome(call)
        assert sum(h.accelerated for h in hits) == 0
    if isinstance(stock, Tensor):
        contract.exactly(ours, stock)
    else:
        assert ours == stock


MODULES: list[nn.Module] = [
    nn.ZeroPad2d((0, 1, 0, 1)),
    nn.ConstantPad2d(2, 0.5),
    nn.ReflectionPad2d(3),
    nn.ReplicationPad2d((1, 0, 2, 3)),
    nn.CircularPad2d(1),
    nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    nn.Conv2d(3, 4, 3, padding="same", padding_mode="replicate"),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda m: type(m).__name__)
def test_modules_in_training(module: nn.Module) -> None:
    def run() -> list[Tensor]:
        x = numbers(2, 3, 12, 20).nan_to_num(0, 1, 1).requires_grad_()
        y = copy.deepcopy(module)(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), x)]

    with ptac.disabled():
        stock = run()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        contract.exactly(run(), stock)
        padded_by_us = 0 if isinstance(module, nn.CircularPad2d) else 2
        assert sum(h.accelerated for h in hits) == padded_by_us, hits


def test_transforms_and_modes() -> None:
    x = numbers(3, 2, 6, 7).nan_to_num(0, 1, 1)

    def run(mode: str) -> list[Tensor]:
        pad = partial(F.pad, pad=(1, 2, 1, 0), mode=mode)
        with torch.inference_mode():
            found = [pad(x), pad(torch._neg_view(x))]
        with torch.autocast("cpu"):
            found.append(pad(x))
        compiled = torch.compile(pad, backend="eager", dynamic=True)
        found += [compiled(x), torch.vmap(pad)(x[:, None]), pad(x.to("meta"))]
        return [*found, *torch.func.jvp(pad, (x,), (x,))]

    for op, name in MODES.items():
        with ptac.disabled():
            stock = run(name)
        with switching.accelerated(*OPS):
            hits = switching.hits(op)
            ours = run(name)
            assert hits.accelerated >= 5, hits
        assert ours.pop(5).shape == stock.pop(5).shape
        contract.exactly(ours, stock)
