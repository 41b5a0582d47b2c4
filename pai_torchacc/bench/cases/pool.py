"""Pooling: images of five sizes and volumes of four, windows of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.bench.cases.case import FLOATS, Call, Case, Make

IMAGES = (
    (1, 8, 8, 8),
    (4, 16, 14, 14),
    (8, 32, 28, 28),
    (64, 32, 28, 28),
    (32, 64, 56, 56),
)

VOLUMES = (
    (1, 8, 4, 8, 8),
    (2, 16, 8, 14, 14),
    (4, 32, 16, 28, 28),
    (2, 16, 32, 64, 64),
)
TILED, OVERLAPPING = (2, 2, 0), (3, 2, 1)
FAR, WIDE = (3, 3, 0), (5, 4, 2)
"""Windows as (kernel, stride, padding)."""

FEW = 4
"""Rows of fewer outputs are a kind of their own."""

Window = tuple[int, int, int]
Image = tuple[int, ...]


def cases() -> Iterator[Case]:
    """Cases of all pooling operators."""
    for dtype in FLOATS:
        for image in IMAGES:
            yield from _max(image, dtype)
            yield from _average(image, dtype)
            yield from _adaptive(image, dtype)
        for volume in VOLUMES:
            yield from _max_3d(volume, dtype)
            if dtype != "bfloat16":
                yield from _average_3d(volume, dtype)
                yield from _adaptive_3d(volume, dtype)


def _draw(image: Image, dtype: str, kind: str) -> Tensor:
    x = torch.randn(image).to(FLOATS[dtype])
    match kind:
        case "nhwc":
            return x.to(memory_format=torch.channels_last)
        case "ndhwc":
            return x.to(memory_format=torch.channels_last_3d)
    return x


def _case(op: str, kind: str, dtype: str, image: Image, makes: list[Make]) -> Case:
    return Case(op, kind, dtype, int(torch.Size(image).numel()), tuple(makes))


def _max(image: Image, dtype: str) -> Iterator[Case]:
    aten = torch.ops.aten

    def forward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: F.max_pool2d(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        y, indices = F.max_pool2d(x, *window, return_indices=True)
        k, s, p = ([n, n] for n in window)
        grad = torch.randn_like(y)
        return lambda: aten.max_pool2d_with_indices_backward(
            grad, x, k, s, p, [1, 1], False, indices
        )

    for kind, windows in (
        ("nchw", (TILED, OVERLAPPING)),
        ("nchw_far", (FAR,)),
        ("nhwc", (TILED, OVERLAPPING)),
    ):
        makes: list[Make] = [partial(forward, kind, w) for w in windows]
        yield _case("max_pool2d", kind, dtype, image, makes)
    for kind, windows in (
        ("nchw_tiled", (TILED,)),
        ("nchw", (OVERLAPPING,)),
        ("nhwc", (TILED, OVERLAPPING)),
    ):
        makes = [partial(backward, kind, w) for w in windows]
        yield _case("max_pool2d_backward", kind, dtype, image, makes)


def _average(image: Image, dtype: str) -> Iterator[Case]:
    def forward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: F.avg_pool2d(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        grad = torch.randn_like(F.avg_pool2d(x, *window))
        k, s, p = ([n, n] for n in window)
        return lambda: torch.ops.aten.avg_pool2d_backward(
            grad, x, k, s, p, False, True, None
        )

    width = image[-1]
    for kind, windows in (
        ("nchw", (TILED, OVERLAPPING)),
        ("nchw_far", (WIDE,) if width // 4 >= FEW else ()),
        ("nchw_narrow", ((width // 2, width // 2, 0),)),
        ("nhwc", (TILED, OVERLAPPING)),
    ):
        if windows:
            for op, make in (("", forward), ("_backward", backward)):
                makes: list[Make] = [partial(make, kind, w) for w in windows]
                yield _case(f"avg_pool2d{op}", kind, dtype, image, makes)


def _adaptive(image: Image, dtype: str) -> Iterator[Case]:
    aten = torch.ops.aten

    def forward(kind: str, size: int) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: F.adaptive_avg_pool2d(x, size)

    def backward(kind: str, size: int) -> Call:
        x = _draw(image, dtype, kind)
        grad = torch.randn_like(F.adaptive_avg_pool2d(x, size))
        return lambda: aten._adaptive_avg_pool2d_backward(grad, x)

    width = image[-1]
    for kind, sizes in (
        ("nchw", (width // 2,)),
        ("nchw_far", (width // 4, 5) if width // 4 >= FEW else (5,)),
        ("nchw_narrow", (2, 3)),
        ("nhwc", (width // 2, 5)),
    ):
        for op, make in (("", forward), ("_backward", backward)):
            makes: list[Make] = [partial(make, kind, size) for size in sizes]
            yield _case(f"adaptive_avg_pool2d{op}", kind, dtype, image, makes)


def _triple(n: int) -> list[int]:
    return [n, n, n]


def _max_3d(volume: Image, dtype: str) -> Iterator[Case]:
    aten = torch.ops.aten

    def forward(kind: str, window: Window) -> Call:
        x = _draw(volume, dtype, kind)
        return lambda: F.max_pool3d(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(volume, dtype, kind)
        y, indices = F.max_pool3d(x, *window, return_indices=True)
        k, s, p = map(_triple, window)
        grad = torch.randn_like(y)
        return lambda: aten.max_pool3d_with_indices_backward(
            grad, x, k, s, p, [1, 1, 1], False, indices
        )

    for kind, windows in (
        ("ncdhw", (TILED, OVERLAPPING)),
        ("ncdhw_far", (FAR,)),
        ("ndhwc", (TILED, OVERLAPPING)),
    ):
        makes: list[Make] = [partial(forward, kind, w) for w in windows]
        yield _case("max_pool3d", kind, dtype, volume, makes)
        if kind != "ncdhw_far":
            makes = [partial(backward, kind, w) for w in windows]
            yield _case("max_pool3d_backward", kind, dtype, volume, makes)


def _average_3d(volume: Image, dtype: str) -> Iterator[Case]:
    """Results are contiguous: volumes and gradients in NDHWC are copied first."""

    def forward(kind: str, window: Window) -> Call:
        x = _draw(volume, dtype, kind)
        return lambda: F.avg_pool3d(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(volume, dtype, "ncdhw")
        y = F.avg_pool3d(x, *window)
        grad = _draw(tuple(y.shape), dtype, kind)
        k, s, p = map(_triple, window)
        return lambda: torch.ops.aten.avg_pool3d_backward(
            grad, x, k, s, p, False, True, None
        )

    depth, width = volume[-3], volume[-1]
    half = min(depth, width // 2)
    for kind, windows in (
        ("ncdhw", (TILED, OVERLAPPING)),
        ("ncdhw_far", (FAR,) if width // 3 >= FEW else ()),
        ("ncdhw_narrow", ((half, width // 2, 0),)),
        ("ndhwc", (TILED, OVERLAPPING)),
    ):
        if windows:
            for op, make in (("", forward), ("_backward", backward)):
                makes: list[Make] = [partial(make, kind, w) for w in windows]
                yield _case(f"avg_pool3d{op}", kind, dtype, volume, makes)


def _adaptive_3d(volume: Image, dtype: str) -> Iterator[Case]:
    aten = torch.ops.aten

    def forward(size: int) -> Call:
        x = _draw(volume, dtype, "ncdhw")
        return lambda: F.adaptive_avg_pool3d(x, size)

    def backward(size: int) -> Call:
        x = _draw(volume, dtype, "ncdhw")
        grad = torch.randn_like(F.adaptive_avg_pool3d(x, size))
        return lambda: aten._adaptive_avg_pool3d_backward(grad, x)

    width = volume[-1]
    for kind, sizes in (
        ("ncdhw", (width // 2,)),
        ("ncdhw_far", (width // 4, 5) if width // 4 >= FEW else (5,)),
        ("ncdhw_narrow", (2, 3)),
    ):
        for op, make in (("", forward), ("_backward", backward)):
            makes: list[Make] = [partial(make, size) for size in sizes]
            yield _case(f"adaptive_avg_pool3d{op}", kind, dtype, volume, makes)
