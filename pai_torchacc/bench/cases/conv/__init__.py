"""Convolutions at stride 1, by kernel, channels and pixels of the batch; and others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case, Gradient
from pai_torchacc.bench.cases.conv import others
from pai_torchacc.bench.cases.conv.others import DATA, WEIGHT, case_of

CHANNELS = {
    (3, "first"): ((1, 32), (3, 64)),
    (3, "few"): ((8, 8), (12, 64)),
    (3, "16"): ((16, 16), (16, 32)),
    (3, "32"): ((32, 32), (32, 64)),
    (3, "64"): ((64, 64), (96, 64)),
    (3, "128"): ((128, 128), (128, 256)),
    (3, "256"): ((256, 256),),
    (3, "512"): ((512, 512),),
    (5, "first"): ((1, 6), (3, 16)),
    (5, "few"): ((8, 8), (12, 32)),
    (5, "16"): ((16, 16), (16, 32)),
    (5, "64"): ((64, 64),),
}
"""Pairs of channels, in and out, by kernel size and by what the smaller one is."""

PIXELS = (64, 256, 1024, 8192)
"""Pixels of a batch, all its images together."""

LAST_PIXELS = {"256": (49, 196), "512": (49,)}
"""Of an image in the last layers of many networks, which have so many channels."""

WIDTHS = (4, 7, 14, 16, 32, 56)
"""Of images, square ones; each is tried with each number of pixels that it fits."""

FIRST_WIDTHS = (16, 28, 56)
"""Of images that first layers see; all of them are tried."""

MOST_WORK = 1_250_000_000
"""Multiply-adds beyond which a case tells nothing new."""


def cases() -> Iterator[Case]:
    """Cases of conv2d and of both its gradients."""
    for (size, few), pairs in CHANNELS.items():
        for pixels in sorted({*PIXELS, *LAST_PIXELS.get(few, ())}):
            is_first = few == "first"
            widths = FIRST_WIDTHS if is_first else WIDTHS
            images = [(pixels // w**2, w) for w in widths if pixels >= w**2]
            if not images or size**2 * pixels * pairs[0][0] * pairs[0][1] > MOST_WORK:
                continue
            tried = images if is_first else (images[0], images[-1])
            if pixels in LAST_PIXELS.get(few, ()):
                tried = images[-1:]
            shapes = [(size, n, c, k, w) for c, k in pairs for n, w in tried]
            kind = f"{size}x{size}_{few}"
            yield from _cases(kind, pixels, shapes, torch.contiguous_format)
            if few.isdigit():
                yield from _cases(f"nhwc_{kind}", pixels, shapes, torch.channels_last)
    yield from others.cases()


def _cases(
    kind: str, pixels: int, shapes: list[tuple[int, ...]], layout: torch.memory_format
) -> Iterator[Case]:
    """Of conv2d and both gradients."""
    for op, suffix, make in (
        ("conv2d", "", _forward),
        ("conv2d_backward", "_data", partial(_backward, DATA)),
        ("conv2d_backward", "_weight", partial(_backward, WEIGHT)),
    ):
        makes = [partial(make, layout, *shape) for shape in shapes]
        yield case_of(op, kind + suffix, pixels, makes)


def _tensors(
    layout: torch.memory_format, size: int, n: int, c: int, k: int, width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = torch.randn(n, c, width, width), torch.randn(k, c, size, size)
    return x.to(memory_format=layout), w.to(memory_format=layout)


def _forward(layout: torch.memory_format, size: int, *shape: int) -> Call:
    x, w = _tensors(layout, size, *shape)
    return lambda: F.conv2d(x, w, padding=size // 2)


def _backward(side: str, layout: torch.memory_format, size: int, *shape: int) -> Call:
    return _gradient(side, *_tensors(layout, size, *shape), 1)


def _gradient(side: str, x: torch.Tensor, w: torch.Tensor, stride: int) -> Call:
    bias = torch.zeros(w.shape[0])
    wanted = [x] if side == DATA else [w, bias]
    return Gradient(
        lambda: F.conv2d(x, w, bias, stride, padding=w.shape[-1] // 2), wanted
    )
