"""Images and signals padded, as for convolutions, U-Nets and style transfer."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from math import prod

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

Size = tuple[int, ...]

IMAGES: tuple[Size, ...] = (
    (1, 16, 7, 7),
    (1, 256, 7, 7),
    (1, 64, 14, 14),
    (16, 256, 7, 7),
    (4, 256, 14, 14),
    (16, 256, 14, 14),
    (1, 16, 28, 28),
    (1, 64, 28, 28),
    (1, 64, 56, 56),
    (4, 64, 56, 56),
    (16, 64, 56, 56),
    (1, 3, 224, 224),
    (1, 64, 112, 112),
)
SIGNALS: tuple[Size, ...] = ((1, 1, 400), (8, 64, 100), (8, 64, 1000))
LAST: tuple[Size, ...] = ((1, 64, 14, 14), (4, 96, 28, 28), (16, 32, 56, 56))
"""In channels_last, where a row is one of pixels with all their channels."""
NARROW_BELOW = 32

ATEN = torch.ops.aten


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for sizes in (*IMAGES, *SIGNALS):
        pad = (1, 1, 1, 1) if sizes in IMAGES else (4, 4)
        y = F.pad(torch.empty(sizes, device="meta"), pad).shape
        kind = "narrow" if y[-1] < NARROW_BELOW else "wide"
        yield _case("constant_pad_nd", kind, y, partial(_pad, sizes, pad, "constant"))
        for name, mode in (("reflection", "reflect"), ("replication", "replicate")):
            forward = partial(_pad, sizes, pad, mode)
            backward = partial(_backward, sizes, pad, f"{name}_pad{len(sizes) - 2}d")
            yield _case(f"{name}_pad", kind, y, forward)
            yield _case(f"{name}_pad_backward", kind, y, backward)
    for sizes in LAST:
        y = F.pad(torch.empty(sizes, device="meta"), (1, 1, 1, 1)).shape
        yield _case("constant_pad_nd", "wide", y, partial(_pad_last, sizes))


def _case(op: str, kind: str, y: torch.Size, make: partial[Call]) -> Case:
    return Case(op, kind, "float32", prod(y), (make,))


def _pad(sizes: Size, pad: tuple[int, ...], mode: str) -> Call:
    x = torch.randn(sizes)
    return lambda: F.pad(x, pad, mode)


def _pad_last(sizes: Size) -> Call:
    x = torch.randn(sizes).to(memory_format=torch.channels_last)
    return lambda: F.pad(x, (1, 1, 1, 1))


def _backward(sizes: Size, pad: tuple[int, ...], name: str) -> Call:
    x = torch.randn(sizes)
    grad = F.pad(x, pad)
    function = getattr(ATEN, f"{name}_backward")
    return lambda: function(grad, x, pad)
