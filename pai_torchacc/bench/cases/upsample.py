"""Images enlarged and pixels shuffled as in U-Net, FPN, YOLO and super-resolution."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

Size = tuple[int, int, int, int]

NARROW: tuple[Size, ...] = ((1, 512, 7, 7), (16, 512, 7, 7), (4, 256, 14, 14))
SMALL: tuple[Size, ...] = (
    (1, 16, 28, 28),
    (1, 64, 28, 28),
    (4, 64, 28, 28),
    (16, 64, 28, 28),
    (1, 64, 20, 20),
)
LARGE: tuple[Size, ...] = (
    (1, 64, 56, 56),
    (4, 64, 56, 56),
    (16, 64, 56, 56),
    (1, 256, 64, 64),
    (1, 64, 112, 112),
)
NARROW_BELOW = 32
FEW_BELOW = 16
ENLARGED_MUCH: tuple[tuple[Size, int], ...] = (
    ((1, 1, 28, 28), 2),
    ((1, 3, 112, 112), 2),
    ((1, 8, 28, 28), 8),
    ((1, 21, 28, 28), 8),
    ((1, 21, 65, 65), 8),
    ((1, 256, 1, 1), 28),
)
"""Classes of segmentation, a pooled image beside others, and few planes."""
SHUFFLED = (48, 96, 256)
NARROWLY_SHUFFLED = (8, 12, 14)

ATEN = torch.ops.aten


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    yield from _upsampled("nchw_narrow", "nchw_2_narrow", "nchw_narrow", NARROW)
    yield from _upsampled("nchw", "nchw_2", "nchw_small", SMALL)
    yield from _upsampled("nchw", "nchw_2", "nchw", LARGE)
    for sizes in (*NARROW, *SMALL, *LARGE):
        for op, make in MAKES.items():
            yield _case(op, "nhwc", 4 * prod(sizes), partial(make, sizes, 2, True))
    for sizes in (*NARROW[:2], *SMALL[:2], *LARGE[:2]):
        narrow = "_narrow" if 3 * sizes[3] < NARROW_BELOW else ""
        make = partial(_nearest_backward, sizes, 3, False)
        yield _case(
            "upsample_nearest2d_backward", "nchw" + narrow, 9 * prod(sizes), make
        )
    for sizes, factor in ENLARGED_MUCH:
        yield from _enlarged(sizes, factor)
    for factor in (2, 3, 4):
        yield from _shuffled(f"by_{factor}", factor, 9, SHUFFLED)
    for factor in (2, 3, 4):
        yield from _shuffled("narrow", factor, 64, NARROWLY_SHUFFLED)


def _upsampled(
    nearest: str, backward: str, bilinear: str, shapes: tuple[Size, ...]
) -> Iterator[Case]:
    kinds = {
        "upsample_nearest2d": nearest,
        "upsample_nearest2d_backward": backward,
        "upsample_bilinear2d": bilinear,
        "upsample_bilinear2d_backward": "nchw",
    }
    for sizes in shapes:
        for op, kind in kinds.items():
            make = partial(MAKES[op], sizes, 2, False)
            yield _case(op, kind, 4 * prod(sizes), make)


def _enlarged(sizes: Size, factor: int) -> Iterator[Case]:
    op, work = "upsample_bilinear2d_backward", factor**2 * prod(sizes)
    few = "_few" if sizes[0] * sizes[1] < FEW_BELOW else ""
    make = partial(_bilinear_backward, sizes, factor)
    yield _case(op, "nchw" + few, work, partial(make, False))
    if sizes[1] > 1:
        yield _case(op, "nhwc", work, partial(make, True))


def _shuffled(
    kind: str, factor: int, channels: int, widths: tuple[int, ...]
) -> Iterator[Case]:
    for w in widths:
        sizes = (1, channels * factor * factor, w, w)
        for op, make in (("pixel_shuffle", _shuffle), ("pixel_unshuffle", _unshuffle)):
            yield _case(op, kind, prod(sizes), partial(make, sizes, factor))


def _case(op: str, kind: str, work: int, *makes: partial[Call]) -> Case:
    return Case(op, kind, "float32", work, makes)


def _images(sizes: Size, nhwc: bool) -> torch.Tensor:
    x = torch.randn(sizes)
    return x.to(memory_format=torch.channels_last) if nhwc else x


def _nearest(sizes: Size, factor: int, nhwc: bool) -> Call:
    x = _images(sizes, nhwc)
    return lambda: F.interpolate(x, scale_factor=factor)


def _bilinear(sizes: Size, factor: int, nhwc: bool) -> Call:
    x = _images(sizes, nhwc)
    return lambda: F.interpolate(x, scale_factor=factor, mode="bilinear")


def _nearest_backward(sizes: Size, factor: int, nhwc: bool) -> Call:
    n, channels, h, w = sizes
    grad = _images((n, channels, factor * h, factor * w), nhwc)
    scales = float(factor), float(factor)
    return lambda: ATEN.upsample_nearest2d_backward(
        grad, grad.shape[2:], sizes, *scales
    )


def _bilinear_backward(sizes: Size, factor: int, nhwc: bool) -> Call:
    n, channels, h, w = sizes
    grad = _images((n, channels, factor * h, factor * w), nhwc)
    size = grad.shape[2:]
    return lambda: ATEN.upsample_bilinear2d_backward(
        grad, size, sizes, False, None, None
    )


def _shuffle(sizes: Size, factor: int) -> Call:
    x = torch.randn(sizes)
    return lambda: F.pixel_shuffle(x, factor)


def _unshuffle(sizes: Size, factor: int) -> Call:
    y = F.pixel_shuffle(torch.randn(sizes), factor)
    return lambda: F.pixel_unshuffle(y, factor)


MAKES = {
    "upsample_nearest2d": _nearest,
    "upsample_nearest2d_backward": _nearest_backward,
    "upsample_bilinear2d": _bilinear,
    "upsample_bilinear2d_backward": _bilinear_backward,
}
