"""Convolutions other than 3x3 and 5x5 at stride 1: layers of networks people run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.bench.cases.case import Call, Case, Gradient, Make

DATA, WEIGHT = "data", "weight"
"""Which gradient: of the input, or of the weight and the bias."""


@dataclass(frozen=True)
class Layer:
    """A convolution of square images, sequences or volumes; padded to keep its size."""

    n: int
    channels: tuple[int, int]
    width: int
    size: int
    stride: int = 1
    groups: int = 1
    dilation: int = 1
    is_transposed: bool = False
    n_axes: int = 2
    depth: int | None = None
    layout: torch.memory_format = torch.contiguous_format

    @property
    def options(self) -> tuple[Any, ...]:
        """What follows the tensors in ``torch.convolution``."""
        padding = (self.size - 1) * self.dilation // 2
        if self.size % self.stride == 0 and self.size in {2, 4, 8, 16}:
            padding = 0  # patches, and what undoes them
        one_each = ((self.stride,), (padding,), (self.dilation,))
        stride, pad, dilation = (option * self.n_axes for option in one_each)
        added = (0,) * self.n_axes
        return stride, pad, dilation, self.is_transposed, added, self.groups

    @property
    def _places(self) -> tuple[int, ...]:
        """Of an input's channel: its length, height and width, or depth as well."""
        return (self.depth or self.width, *(self.width,) * (self.n_axes - 1))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, weights, bias."""
        c, k = self.channels
        taps = (self.size,) * self.n_axes
        x = torch.randn(self.n, c, *self._places)
        of_group = (
            (c, k // self.groups) if self.is_transposed else (k, c // self.groups)
        )
        w = torch.randn(*of_group, *taps)
        if self.layout != torch.contiguous_format:
            x, w = (t.to(memory_format=self.layout) for t in (x, w))
        return x, w, torch.zeros(k)

    def work(self) -> int:
        """Multiply-adds."""
        (stride, *_), (padding, *_), *_ = self.options
        reach = (self.size - 1) * self.dilation + 1 - 2 * padding
        places = self._places
        if not self.is_transposed:
            places = tuple((place - reach) // stride + 1 for place in places)
        taps = math.prod(self.channels) // self.groups * self.size**self.n_axes
        return self.n * math.prod(places) * taps


def _at(batches: tuple[int, ...], *shape: Any, **more: Any) -> list[tuple[Layer, ...]]:
    return [(Layer(n, *shape, **more),) for n in batches]


def _each(*shape: Any, **more: Any) -> list[tuple[Layer, ...]]:
    """Of an image alone and of a batch."""
    return _at((1, 16), *shape, **more)


def _volumes(
    batches: tuple[int, ...],
    channels: tuple[int, int],
    width: int,
    depth: int,
    *options: int,
    **more: Any,
) -> list[tuple[Layer, ...]]:
    return _at(batches, channels, width, *options, n_axes=3, depth=depth, **more)


def _1x1(*shapes: tuple[int, int, int, int]) -> list[tuple[Layer, ...]]:
    """Layers, each with one that has its channels the other way round."""
    return [
        (Layer(n, (c, k), width, 1), Layer(n, (k, c), width, 1))
        for n, c, k, width in shapes
    ]


PLACES: dict[str, list[tuple[Layer, ...]]] = {
    "1x1_few": _1x1((1, 8, 48, 28), (1, 8, 48, 56), (16, 8, 48, 56)),
    "1x1_16": _1x1(
        (1, 24, 144, 28),
        (1, 24, 144, 56),
        (1, 16, 96, 112),
        (16, 24, 144, 28),
        (16, 24, 144, 56),
    ),
    "1x1_32": _1x1(
        (16, 40, 120, 1),
        (1, 40, 240, 14),
        (1, 32, 192, 28),
        (1, 40, 120, 28),
        (16, 40, 240, 14),
        (16, 32, 192, 28),
        (16, 48, 48, 56),
    ),
    "1x1_64": _1x1(
        (1, 64, 64, 14),
        (1, 64, 384, 14),
        (1, 64, 256, 28),
        (1, 64, 256, 56),
        (16, 64, 384, 14),
        (16, 64, 256, 28),
        (16, 64, 256, 56),
    ),
    "1x1_128": _1x1(
        (1, 128, 128, 14),
        (1, 128, 512, 14),
        (1, 128, 512, 28),
        (16, 128, 512, 14),
        (16, 128, 512, 28),
    ),
    "1x1_256": _1x1(
        (1, 256, 256, 14),
        (1, 256, 1024, 14),
        (1, 512, 1024, 14),
        (16, 256, 1024, 14),
        (16, 256, 512, 28),
    ),
    "1x1_point": _1x1(
        (1, 8, 32, 1),
        (1, 24, 72, 1),
        (1, 120, 480, 1),
        (1, 240, 960, 1),
        (16, 24, 72, 1),
        (16, 240, 960, 1),
    ),
    "1x1_small": _1x1((1, 32, 128, 7), (1, 40, 240, 8), (16, 32, 128, 7)),
    "1x1_small_64": _1x1(
        (1, 80, 480, 7), (1, 160, 960, 7), (16, 80, 480, 7), (16, 160, 960, 7)
    ),
    "1x1_small_256": _1x1(
        (1, 256, 256, 7),
        (1, 256, 1024, 7),
        (1, 512, 1024, 8),
        (1, 512, 2048, 7),
        (8, 256, 256, 7),
        (8, 256, 1024, 7),
        (16, 256, 1024, 7),
        (16, 512, 2048, 7),
    ),
    "1x1_strided": [
        *_each((48, 104), 28, 1, 2),
        *_each((64, 128), 56, 1, 2),
        *_each((128, 256), 28, 1, 2),
        *_each((256, 512), 56, 1, 2),
    ],
    "1x1_strided_512": [
        *_each((512, 1024), 14, 1, 2),
        *_each((512, 1024), 28, 1, 2),
    ],
    "1x1_strided_1024": _each((1024, 2048), 14, 1, 2),
    "strided_first": [
        *_each((4, 32), 84, 8, 4),
        *_each((3, 32), 112, 3, 2),
        *_each((3, 32), 224, 3, 2),
        *_each((3, 96), 224, 4, 4),
        *_each((3, 64), 224, 7, 2),
    ],
    "strided_few": [*_each((8, 16), 28, 3, 2), *_each((12, 24), 56, 3, 2)],
    "strided_16": [
        *_each((16, 32), 28, 3, 2),
        *_each((32, 64), 20, 4, 2),
        *_each((32, 64), 56, 3, 2),
    ],
    "strided_64": [
        *_each((64, 128), 28, 3, 2),
        *_each((64, 128), 56, 3, 2),
        *_each((128, 256), 28, 3, 2),
        *_each((96, 192), 56, 2, 2),
    ],
    "strided_256": [
        *_each((256, 512), 14, 3, 2),
        *_each((256, 256), 28, 3, 2),
        *_each((384, 768), 14, 2, 2),
    ],
    "strided_512": [*_each((512, 512), 8, 3, 2), *_each((512, 512), 14, 3, 2)],
    "transposed_few": [
        *_each((16, 3), 16, 4, 2, is_transposed=True),
        *_each((16, 3), 32, 4, 2, is_transposed=True),
    ],
    "transposed_16": [
        (
            Layer(16, (64, 32), 4, 4, 2, is_transposed=True),
            Layer(16, (32, 16), 8, 4, 2, is_transposed=True),
        ),
        *_each((32, 16), 28, 2, 2, is_transposed=True),
        *_each((64, 32), 28, 3, 2, is_transposed=True),
        *_each((64, 32), 48, 2, 2, is_transposed=True),
    ],
    "transposed_64": [
        *_each((128, 64), 16, 4, 2, is_transposed=True),
        *_each((256, 128), 14, 2, 2, is_transposed=True),
    ],
    "grouped_few": [
        *_each((128, 128), 28, 3, groups=32),
        *_each((128, 128), 56, 3, groups=32),
    ],
    "grouped_8": [
        *_each((440, 440), 7, 3, groups=55),
        *_each((104, 104), 14, 3, groups=13),
        *_each((208, 208), 14, 3, groups=13),
        *_each((48, 48), 56, 3, groups=6),
        *_each((256, 256), 28, 3, groups=32),
    ],
    "grouped_32": [
        *_each((1024, 1024), 7, 3, groups=32),
        *_each((512, 512), 14, 3, groups=8),
    ],
    "grouped_strided": [
        *_each((440, 440), 14, 3, 2, 55),
        *_each((104, 104), 28, 3, 2, 13),
        *_each((256, 256), 56, 3, 2, 32),
        *_each((1024, 1024), 14, 3, 2, 32),
    ],
    "row_first": [
        *_each((1, 32), 4000, 80, 4, n_axes=1),
        *_each((1, 64), 16000, 80, 16, n_axes=1),
        *_each((2, 32), 1000, 3, n_axes=1),
    ],
    "row_few": [*_each((8, 16), 500, 3, n_axes=1), *_each((12, 24), 1000, 5, n_axes=1)],
    "row_16": [
        *_each((32, 32), 500, 3, n_axes=1, dilation=4),
        *_each((32, 64), 1000, 3, n_axes=1),
        *_each((32, 64), 1000, 8, 4, n_axes=1),
    ],
    "row_64": [
        *_each((64, 64), 500, 3, n_axes=1, dilation=4),
        *_each((64, 128), 1000, 3, n_axes=1),
        *_each((128, 128), 1000, 3, 2, n_axes=1),
    ],
    "other_few": [*_each((8, 8), 28, 7), *_each((12, 24), 28, 3, dilation=2)],
    "other": [
        *_at((2,), (16, 16), 16, 7),
        *_at((1, 8), (64, 64), 14, 7),
        *_at((1, 4), (64, 64), 56, 7),
        *_each((256, 256), 14, 3, dilation=2),
        *_at((1,), (256, 256), 28, 3, dilation=2),
    ],
    "nhwc": [
        *_at((2,), (16, 32), 16, 3, 2, layout=torch.channels_last),
        *_at((8,), (64, 128), 28, 3, 2, layout=torch.channels_last),
        *_at((8,), (256, 256), 28, 1, layout=torch.channels_last),
        *_at((1,), (256, 512), 56, 1, 2, layout=torch.channels_last),
    ],
    "nhwc_small": [
        *_each((160, 960), 7, 1, layout=torch.channels_last),
        *_each((128, 256), 14, 3, 2, layout=torch.channels_last),
    ],
    "nhwc_small_256": [
        *_at((1,), (256, 512), 14, 1, 2, layout=torch.channels_last),
        *_each((512, 2048), 7, 1, layout=torch.channels_last),
        *_at((1,), (256, 512), 14, 3, 2, layout=torch.channels_last),
        *_each((1024, 2048), 14, 1, 2, layout=torch.channels_last),
        *_each((512, 512), 14, 3, 2, layout=torch.channels_last),
    ],
    "volume_alone": [
        *_volumes((1,), (8, 8), 16, 16, 3),
        *_volumes((1,), (1, 16), 32, 8, 3),
        *_volumes((1,), (16, 32), 28, 8, 3),
        *_volumes((1,), (3, 64), 56, 16, 3),
        *_volumes((1,), (32, 32), 32, 16, 3),
    ],
    "volume_alone_64": [
        *_volumes((1,), (64, 64), 14, 8, 3),
        *_volumes((1,), (64, 64), 28, 8, 3),
    ],
    "volume_alone_128": [
        *_volumes((1,), (256, 256), 14, 2, 3),
        *_volumes((1,), (128, 128), 28, 4, 3),
    ],
    "volume_alone_1x1": [
        *_volumes((1,), (16, 32), 28, 8, 1),
        *_volumes((1,), (64, 128), 28, 8, 1),
        *_volumes((1,), (256, 64), 14, 4, 1),
    ],
    "volume_alone_strided": [
        *_volumes((1,), (64, 128), 28, 8, 1, 2),
        *_volumes((1,), (16, 32), 28, 16, 3, 2),
        *_volumes((1,), (64, 128), 28, 8, 3, 2),
        *_volumes((1,), (256, 512), 14, 4, 3, 2),
    ],
    "volume_alone_transposed": [
        *_volumes((1,), (32, 16), 14, 8, 2, 2, is_transposed=True),
        *_volumes((1,), (64, 32), 14, 8, 2, 2, is_transposed=True),
        *_volumes((1,), (64, 32), 28, 8, 2, 2, is_transposed=True),
    ],
    "volume_first": [
        *_volumes((2, 8), (1, 16), 32, 8, 3),
        *_volumes((4,), (3, 32), 28, 8, 3),
        *_volumes((4,), (3, 64), 56, 16, 3),
    ],
    "volume_few": [
        *_volumes((2, 16), (8, 8), 16, 16, 3),
        *_volumes((4,), (8, 16), 28, 8, 3),
    ],
    "volume_16": [
        *_volumes((2,), (16, 32), 16, 4, 3),
        *_volumes((4,), (32, 32), 14, 8, 3),
        *_volumes((4,), (16, 32), 28, 16, 3),
    ],
    "volume_64": [
        *_volumes((4,), (64, 64), 14, 8, 3),
        *_volumes((4,), (128, 128), 14, 4, 3),
        *_volumes((4,), (64, 64), 28, 8, 3),
    ],
    "volume_1x1": [
        *_volumes((4,), (16, 32), 28, 8, 1),
        *_volumes((4,), (256, 64), 14, 8, 1),
        *_volumes((4,), (64, 128), 28, 8, 1),
    ],
    "volume_strided": [
        *_volumes((4,), (64, 128), 28, 8, 1, 2),
        *_volumes((4,), (16, 32), 28, 16, 3, 2),
        *_volumes((4,), (64, 128), 28, 8, 3, 2),
    ],
    "volume_transposed": [
        *_volumes((4,), (32, 16), 14, 8, 2, 2, is_transposed=True),
        *_volumes((4,), (64, 32), 14, 8, 2, 2, is_transposed=True),
        *_volumes((4,), (64, 32), 28, 8, 2, 2, is_transposed=True),
    ],
    "volume_grouped": [
        *_volumes((1, 4), (32, 32), 28, 8, 3, groups=32),
        *_volumes((1, 4), (64, 64), 14, 8, 3, groups=8),
        *_volumes((4,), (128, 128), 14, 4, 3, groups=32),
    ],
    "any": [
        *_at((2,), (8, 16), 8, 3, groups=2),
        *_at((4,), (16, 32), 14, 3, 2),
        *_at((4,), (16, 16), 28, 3, groups=4),
        *_at((1,), (32, 32), 56, 3, groups=8),
        *_at((1,), (64, 64), 112, 3, groups=16),
        *_at((16, 64), (96, 96), 28, 3, groups=24),
        *_at((16,), (96, 192), 56, 3, 2, groups=16),
    ],
}
"""By kind: places, each with layers of the same work."""


_SMALL = 256
"""Places of an image, up to which several have kinds of their own: divide_1x1()."""


def _forward_kind(kind: str, layer: Layer) -> str:
    if not kind.startswith("1x1_") or layer.stride > 1 or layer.n == 1:
        return kind
    if not 4 < layer.width**2 <= _SMALL:  # noqa: PLR2004
        return kind
    least = ((256, "1x1_batch_256"), (64, "1x1_batch_64"), (0, "1x1_batch"))
    return next(name for n, name in least if min(layer.channels) >= n)


def cases() -> Iterator[Case]:
    """Cases of conv2d and of both its gradients."""
    for kind, places in PLACES.items():
        for layers in sorted(places, key=lambda layers: layers[0].work()):
            work = layers[0].work()
            of_forward = _forward_kind(kind, layers[0])
            makes = [partial(_forward, layer) for layer in layers]
            yield case_of("conv2d", of_forward, work, makes)
            for side in (DATA, WEIGHT):
                makes = [partial(_backward, side, layer) for layer in layers]
                yield case_of("conv2d_backward", f"{kind}_{side}", work, makes)


def case_of(op: str, kind: str, work: int, makes: Sequence[Make]) -> Case:
    """One of conv2d or, with our conv2d before it, of its backward."""
    with_ops = ("conv2d",) if op != "conv2d" else ()
    return Case(op, kind, "float32", work, tuple(makes), with_ops)


def _forward(layer: Layer) -> Call:
    x, w, bias = layer.tensors()
    return lambda: torch.convolution(x, w, bias, *layer.options)


def _backward(side: str, layer: Layer) -> Call:
    x, w, bias = layer.tensors()
    wanted = [x] if side == DATA else [w, bias]
    return Gradient(lambda: torch.convolution(x, w, bias, *layer.options), wanted)
