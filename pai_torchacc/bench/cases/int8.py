"""Layers of quantized models beside the same layers in float.

A place is a kind and the weights of a layer: how many rows or pixels a call has is
known only when it comes, so that kinds of linear layers are ranges of rows, and
convolutions are measured at images of several sizes, of which the worst counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from pai_torchacc import _host
from pai_torchacc.bench.cases.case import Call, Case

ROWS = {"m1": (1,), "m2_7": (2, 7), "m8_31": (8, 31), "m32_up": (32, 256)}

WEIGHTS = (
    (10, 16),
    (10, 128),
    (16, 128),
    (10, 1000),
    (32, 128),
    (64, 256),
    (128, 512),
    (512, 256),
    (512, 512),
    (512, 2048),
    (3072, 768),
    (4096, 2048),
)
"""Of linear layers: (outputs, inputs)."""

CONVOLUTIONS = (
    ("few", 32, 1, 3, (28, 64)),
    ("few", 32, 3, 3, (32, 64)),
    ("few", 64, 3, 3, (32, 112)),
    ("few", 64, 3, 7, (64, 224)),
    ("3x3", 16, 16, 3, (8, 32)),
    ("3x3", 32, 32, 3, (8, 32)),
    ("3x3", 64, 32, 3, (7, 14, 28)),
    ("3x3", 64, 64, 3, (7, 14, 56)),
    ("3x3", 128, 128, 3, (7, 14, 28)),
    ("3x3", 256, 256, 3, (7, 14)),
    ("3x3", 512, 512, 3, (7, 14)),
    ("1x1", 32, 16, 1, (7, 28)),
    ("1x1", 64, 32, 1, (7, 28)),
    ("1x1", 64, 64, 1, (7, 56)),
    ("1x1", 128, 64, 1, (7, 56)),
    ("1x1", 64, 256, 1, (7, 56)),
    ("1x1", 256, 128, 1, (7, 28)),
    ("1x1", 512, 256, 1, (7, 14)),
    ("1x1", 2048, 512, 1, (7,)),
    ("other", 16, 16, 5, (8, 32)),
    ("other", 64, 32, 5, (7, 28)),
    ("other", 128, 64, 5, (7, 28)),
    ("other", 256, 256, 5, (7, 14)),
)
"""(kind, output channels, input channels, window, sizes of images)."""

_WITHOUT = ("scalar",)

SUBLAYERS = (64, 256, 512, 1024)
"""Widths of transformers, whose feed-forward layers are four times as wide."""

SUBLAYER_ROWS = {"m2_31": (8, 31), "m32_up": (32, 256)}

EMBEDDINGS = ((1000, 16), (1000, 64), (30522, 128), (30522, 512))


class Layer:
    """A call that is float while the operator is off."""

    def __init__(self, stock: Call, entry: Any, args: tuple[Any, ...]):
        self.stock, self._entry, self._args = stock, entry, args

    def __call__(self) -> Any:
        """Call the extension, or stock where it gives the call back."""
        result = self._entry(*self._args)
        return self.stock() if result is None else result


def cases() -> Iterator[Case]:
    """Cases of int8_linear, int8_conv2d, int8_embedding and int8_sublayer."""
    for n, k in WEIGHTS:
        for kind, rows in ROWS.items():
            makes = tuple(partial(_linear, m, n, k) for m in rows)
            yield Case("int8_linear", kind, "float32", n * k, makes, (), _WITHOUT)
    for kind, n, c, window, images in CONVOLUTIONS:
        makes = tuple(partial(_conv, n, c, window, size) for size in images)
        work = n * c * window**2
        yield Case("int8_conv2d", kind, "float32", work, makes, (), _WITHOUT)
    for v, d in EMBEDDINGS:
        makes = tuple(partial(_embedding, v, d, n) for n in (1, 32, 1024))
        yield Case("int8_embedding", "rows", "float32", d, makes, (), _WITHOUT)
    for d in SUBLAYERS:
        for rows, counts in SUBLAYER_ROWS.items():
            one = tuple(partial(_sublayer, m, d, 0) for m in counts)
            two = tuple(partial(_sublayer, m, d, 4 * d) for m in counts)
            for kind, work, makes in (("one", d * d, one), ("two", 8 * d * d, two)):
                place = "int8_sublayer", f"{kind}_{rows}", "float32", work
                yield Case(*place, makes, (), _WITHOUT)


def _linear(m: int, n: int, k: int) -> Call:
    c = _host.learnt()
    x, weight, bias = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
    int8, scale, _, _ = c.int8_quantize(weight)
    args = x, c.int8_pack(int8, 1), scale, bias, n, k
    return Layer(lambda: F.linear(x, weight, bias), c.int8_linear, args)


def _conv(n: int, channels: int, window: int, size: int) -> Call:
    c = _host.learnt()
    x = torch.randn(1, channels, size, size)
    weight, bias = torch.randn(n, channels, window, window), torch.randn(n)
    int8, scale, _, _ = c.int8_quantize(weight)
    half = window // 2
    geometry = n, channels, window, window, 1, 1, half, half, 1, 1, 1
    args = x, c.int8_pack(int8, 1), scale, bias, geometry
    return Layer(lambda: F.conv2d(x, weight, bias, 1, half), c.int8_conv2d, args)


def _embedding(v: int, d: int, n: int) -> Call:
    c = _host.learnt()
    weight, indices = torch.randn(v, d), torch.randint(v, (n,))
    int8, scale, _, _ = c.int8_quantize(weight)
    args = indices, int8, scale
    return Layer(lambda: F.embedding(indices, weight), c.int8_embedding, args)


def _sublayer(m: int, d: int, inner: int) -> Call:
    """A layer with its residual and norm, or two with a GELU between them."""
    c = _host.learnt()
    x, affine = torch.randn(m, d), (torch.randn(d), torch.randn(d))
    n = inner or d
    first = torch.randn(n, d) / d**0.5, torch.randn(n)
    second = (torch.randn(d, inner) / d**0.5, torch.randn(d)) if inner else None

    def packed(weight: Any, bias: Any) -> tuple[Any, ...]:
        int8, scale, _, _ = c.int8_quantize(weight)
        return c.int8_pack(int8, 1), scale, bias

    def stock() -> Any:
        y = F.linear(x, *first)
        if second is not None:
            y = F.linear(F.gelu(y), *second)
        return F.layer_norm(x + y, (d,), *affine)

    rest = (*packed(*second), d) if second else (None, None, None, 0)
    last = 2
    args = (x, *packed(*first), n, d, 2 * bool(inner), *rest, x, *affine, 1e-5, last)
    return Layer(stock, c.int8_sublayer, args)
