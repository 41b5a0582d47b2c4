"""Depthwise convolutions of images and signals, by kernel, stride and layout."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.bench.cases.case import Call, Case, Gradient


class Shape(NamedTuple):
    """What is convolved; the padding keeps sizes, but for the stride."""

    channels: int
    width: int
    size: int
    stride: int = 1
    is_nhwc: bool = False
    is_signal: bool = False
    dilation: int = 1


KINDS = {
    "3x3": (Shape(16, 16, 3), Shape(576, 14, 3), Shape(192, 28, 3), Shape(144, 56, 3)),
    "3x3_strided": (Shape(16, 32, 3, 2), Shape(192, 28, 3, 2), Shape(96, 112, 3, 2)),
    "5x5": (Shape(16, 16, 5), Shape(672, 14, 5), Shape(240, 28, 5)),
    "5x5_strided": (Shape(16, 32, 5, 2), Shape(240, 28, 5, 2), Shape(144, 56, 5, 2)),
    "7x7": (Shape(16, 16, 7), Shape(384, 14, 7), Shape(192, 28, 7), Shape(96, 56, 7)),
    "other": (Shape(16, 16, 9), Shape(240, 28, 3, dilation=2), Shape(96, 56, 4)),
    "3x3_narrow": (Shape(32, 7, 3), Shape(960, 7, 3)),
    "3x3_strided_narrow": (Shape(32, 14, 3, 2), Shape(576, 14, 3, 2)),
    "5x5_narrow": (Shape(32, 7, 5), Shape(1152, 7, 5)),
    "5x5_strided_narrow": (Shape(32, 14, 5, 2), Shape(672, 14, 5, 2)),
    "7x7_narrow": (Shape(32, 7, 7), Shape(768, 7, 7)),
    "other_narrow": (Shape(32, 7, 9), Shape(960, 7, 3, dilation=2)),
    "1d": (Shape(64, 128, 9, is_signal=True), Shape(256, 1000, 3, is_signal=True)),
    "nhwc_3x3": (
        Shape(32, 14, 3, is_nhwc=True),
        Shape(960, 7, 3, is_nhwc=True),
        Shape(144, 56, 3, is_nhwc=True),
        Shape(96, 112, 3, 2, is_nhwc=True),
    ),
    "nhwc": (
        Shape(32, 14, 5, is_nhwc=True),
        Shape(672, 14, 5, is_nhwc=True),
        Shape(384, 14, 7, is_nhwc=True),
        Shape(96, 56, 7, is_nhwc=True),
    ),
}
"""Shapes of each kind, at which images of a batch are convolved."""

NARROW = 8
"""Columns, at most, of what the extension calls narrow."""

BATCHES = (1, 16)

DATA, WEIGHT = "data", "weight"
"""Which gradient: of the input, or of the weight and the bias."""


def cases() -> Iterator[Case]:
    """Cases of depthwise_conv2d and of both its gradients."""
    for kind, shapes in KINDS.items():
        for shape in shapes:
            for n in BATCHES:
                work = n * _work(shape)
                yield _case("depthwise_conv2d", kind, work, partial(_forward, n, shape))
                for side in (DATA, WEIGHT):
                    made = partial(_gradient, n, shape, side)
                    own = _kind_of_data(kind, shape) if side == DATA else kind
                    op, name = "depthwise_conv2d_backward", f"{own}_{side}"
                    yield _case(op, name, work, made)


def _kind_of_data(kind: str, shape: Shape) -> str:
    """The gradient of the data of a narrow result may be wide."""
    return kind.removesuffix("_narrow") if shape.width > NARROW else kind


def _work(shape: Shape) -> int:
    out = (shape.width - 1) // shape.stride + 1
    if shape.size % 2 == 0:
        out -= 1
    if shape.is_signal:
        return shape.channels * out * shape.size
    return shape.channels * out**2 * shape.size**2


def _tensors(n: int, shape: Shape) -> tuple[Tensor, Tensor, Tensor]:
    n_axes = 1 if shape.is_signal else 2
    x = torch.randn(n, shape.channels, *[shape.width] * n_axes)
    weight = torch.randn(shape.channels, 1, *[shape.size] * n_axes)
    if shape.is_nhwc:
        x = x.to(memory_format=torch.channels_last)
    return x, weight, torch.zeros(shape.channels)


def _convolve(shape: Shape, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    function = F.conv1d if shape.is_signal else F.conv2d
    padding = (shape.size - 1) // 2 * shape.dilation
    return function(
        x, weight, bias, shape.stride, padding, shape.dilation, shape.channels
    )


def _forward(n: int, shape: Shape) -> Call:
    return partial(_convolve, shape, *_tensors(n, shape))


def _gradient(n: int, shape: Shape, side: str) -> Call:
    x, weight, bias = _tensors(n, shape)
    wanted = [x] if side == DATA else [weight, bias]
    return Gradient(partial(_convolve, shape, x, weight, bias), wanted)


def _case(op: str, kind: str, work: int, make: partial[Call]) -> Case:
    with_ops = ("depthwise_conv2d",) if op != "depthwise_conv2d" else ()
    return Case(op, kind, "float32", work, (make,), with_ops, ("scalar",))
