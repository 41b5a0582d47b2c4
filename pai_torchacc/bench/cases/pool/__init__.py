"""Pooling: images of five sizes and volumes of four, windows of every kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

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


Calls = Callable[..., Call]
"""By the layout of what a call is given, and its window or size."""


def _max_calls(image: Image, dtype: str) -> tuple[Calls, Calls]:
    n = len(image) - 2
    pool = getattr(F, f"max_pool{n}d")
    gradient = getattr(torch.ops.aten, f"max_pool{n}d_with_indices_backward")

    def forward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: pool(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        y, indices = pool(x, *window, return_indices=True)
        k, s, p = ([length] * n for length in window)
        grad = torch.randn_like(y)
        return lambda: gradient(grad, x, k, s, p, [1] * n, False, indices)

    return forward, backward


def _average_calls(image: Image, dtype: str) -> tuple[Calls, Calls]:
    n = len(image) - 2
    pool = getattr(F, f"avg_pool{n}d")
    gradient = getattr(torch.ops.aten, f"avg_pool{n}d_backward")

    def forward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: pool(x, *window)

    def backward(kind: str, window: Window) -> Call:
        x = _draw(image, dtype, kind)
        grad = _draw(tuple(pool(x, *window).shape), dtype, kind)
        k, s, p = ([length] * n for length in window)
        return lambda: gradient(grad, x, k, s, p, False, True, None)

    return forward, backward


def _adaptive_calls(image: Image, dtype: str) -> tuple[Calls, Calls]:
    n = len(image) - 2
    pool = getattr(F, f"adaptive_avg_pool{n}d")
    gradient = getattr(torch.ops.aten, f"_adaptive_avg_pool{n}d_backward")

    def forward(kind: str, size: int) -> Call:
        x = _draw(image, dtype, kind)
        return lambda: pool(x, size)

    def backward(kind: str, size: int) -> Call:
        x = _draw(image, dtype, kind)
        grad = torch.randn_like(pool(x, size))
        return lambda: gradient(grad, x)

    return forward, backward


def _max(image: Image, dtype: str) -> Iterator[Case]:
    forward, backward = _max_calls(image, dtype)
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


def _both(
    op: str,
    dtype: str,
    image: Image,
    calls: tuple[Calls, Calls],
    kinds: Iterable[tuple[str, tuple[Any, ...]]],
) -> Iterator[Case]:
    """Cases forward and backward: by kind, windows or sizes."""
    for kind, given in kinds:
        if given:
            for suffix, make in zip(("", "_backward"), calls, strict=True):
                makes: list[Make] = [partial(make, kind, each) for each in given]
                yield _case(op + suffix, kind, dtype, image, makes)


def _average(image: Image, dtype: str) -> Iterator[Case]:
    width = image[-1]
    kinds = (
        ("nchw", (TILED, OVERLAPPING)),
        ("nchw_far", (WIDE,) if width // 4 >= FEW else ()),
        ("nchw_narrow", ((width // 2, width // 2, 0),)),
        ("nhwc", (TILED, OVERLAPPING)),
    )
    yield from _both("avg_pool2d", dtype, image, _average_calls(image, dtype), kinds)


def _sizes_far(width: int) -> tuple[int, ...]:
    return (width // 4, 5) if width // 4 >= FEW else (5,)


def _adaptive(image: Image, dtype: str) -> Iterator[Case]:
    width = image[-1]
    kinds = (
        ("nchw", (width // 2,)),
        ("nchw_far", _sizes_far(width)),
        ("nchw_narrow", (2, 3)),
        ("nhwc", (width // 2, 5)),
    )
    calls = _adaptive_calls(image, dtype)
    yield from _both("adaptive_avg_pool2d", dtype, image, calls, kinds)


def _max_3d(volume: Image, dtype: str) -> Iterator[Case]:
    forward, backward = _max_calls(volume, dtype)
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
    depth, width = volume[-3], volume[-1]
    half = min(depth, width // 2)
    kinds = (
        ("ncdhw", (TILED, OVERLAPPING)),
        ("ncdhw_far", (FAR,) if width // 3 >= FEW else ()),
        ("ncdhw_narrow", ((half, width // 2, 0),)),
        ("ndhwc", (TILED, OVERLAPPING)),
    )
    yield from _both("avg_pool3d", dtype, volume, _average_calls(volume, dtype), kinds)


def _adaptive_3d(volume: Image, dtype: str) -> Iterator[Case]:
    width = volume[-1]
    kinds = (
        ("ncdhw", (width // 2,)),
        ("ncdhw_far", _sizes_far(width)),
        ("ncdhw_narrow", (2, 3)),
    )
    calls = _adaptive_calls(volume, dtype)
    yield from _both("adaptive_avg_pool3d", dtype, volume, calls, kinds)
