"""Convolutions at stride 1, by kernel, by channels and by pixels of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case, Make

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

WIDTHS = (4, 7, 14, 16, 32, 56)
"""Of images, square ones; each is tried with each number of pixels that it fits."""

FIRST_WIDTHS = (16, 28, 56)
"""Of images that first layers see; all of them are tried."""

MOST_WORK = 1_250_000_000
"""Multiply-adds beyond which a case tells nothing new."""

DATA, WEIGHT = (True, False, False), (False, True, True)


def cases() -> Iterator[Case]:
    """Cases of conv2d and of both its gradients."""
    for (size, few), pairs in CHANNELS.items():
        for pixels in PIXELS:
            is_first = few == "first"
            widths = FIRST_WIDTHS if is_first else WIDTHS
            images = [(pixels // w**2, w) for w in widths if pixels >= w**2]
            if not images or size**2 * pixels * pairs[0][0] * pairs[0][1] > MOST_WORK:
                continue
            tried = images if is_first else (images[0], images[-1])
            for op, suffix, make in (
                ("conv2d", "", _forward),
                ("conv2d_backward", "_data", partial(_backward, DATA)),
                ("conv2d_backward", "_weight", partial(_backward, WEIGHT)),
            ):
                makes: list[Make] = [
                    partial(make, size, n, c, k, w) for c, k in pairs for n, w in tried
                ]
                yield Case(
                    op, f"{size}x{size}_{few}{suffix}", "float32", pixels, tuple(makes)
                )


def _forward(size: int, n: int, c: int, k: int, width: int) -> Call:
    x, w = torch.randn(n, c, width, width), torch.randn(k, c, size, size)
    return lambda: F.conv2d(x, w, padding=size // 2)


def _backward(
    mask: tuple[bool, bool, bool], size: int, n: int, c: int, k: int, width: int
) -> Call:
    x, w = torch.randn(n, c, width, width), torch.randn(k, c, size, size)
    grad = torch.randn(n, k, width, width)
    one, zero, padding = [1, 1], [0, 0], [size // 2] * 2
    return lambda: torch.ops.aten.convolution_backward(
        grad, x, w, [k], one, padding, one, False, zero, 1, mask
    )
