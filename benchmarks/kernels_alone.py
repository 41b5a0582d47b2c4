"""Kernels of networks alone, beside stock, and how fast memory is here.

``python -m benchmarks.kernels_alone [--threads N] [--csv FILE] [NAME ...]`` prints the
times of the least blocks, their ratio and that of medians, of calls as networks make
them; names are beginnings.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc.bench.measure import Call, alternate, raise_malloc_thresholds, ratio

ATEN = torch.ops.aten

DEPTHWISE = (
    *((3, 1, 32, 112), (3, 1, 96, 56), (3, 1, 192, 28), (3, 1, 384, 14)),
    *((3, 2, 96, 112), (3, 2, 192, 28), (3, 1, 960, 7)),
    *((5, 1, 240, 28), (5, 2, 240, 28), (5, 1, 672, 14), (5, 1, 960, 7)),
    *((7, 1, 96, 56), (7, 1, 384, 14)),
)
"""Size of kernels, stride, channels, width of 16 images: of MobileNet's and
EfficientNet's layers, and 7 x 7 as in ConvNeXt's, but in NCHW."""

NORMED = ((64, 112), (256, 56), (512, 28), (1024, 14), (2048, 7))
"""Channels, width of 16 images: ResNet-50's."""

VOLUMES = ((2, 2, 16, 32), (2, 2, 32, 16), (3, 2, 16, 32), (3, 1, 16, 16))
"""Window, stride, channels, side of 2 cubes."""

PRODUCTS = (
    *((16, 768, 3072), (64, 768, 3072), (64, 3072, 768), (197, 768, 3072)),
    *((784, 3072, 768), (3136, 384, 1536), (3136, 1536, 384), (1024, 1024, 1024)),
)
"""Rows, terms, columns: of layers in BERT, ViT and ConvNeXt, and a square."""

POINTWISE = (
    *((64, 256, 56), (256, 64, 56), (128, 512, 28), (512, 128, 28)),
    *((256, 1024, 14), (1024, 256, 14), (512, 2048, 7), (2048, 512, 7)),
)
"""Channels in, out, width of 16 images: ResNet-50's kernels of 1x1."""


def product(rows: int, terms: int, columns: int, order: str) -> Call:
    """Of matrices that lie row by row, ``n``, or column by column, ``t``."""
    a, b = torch.randn(rows, terms), torch.randn(terms, columns)
    if order[0] == "t":
        a = a.t().contiguous().t()
    if order[1] == "t":
        b = b.t().contiguous().t()
    return partial(torch.mm, a, b)


def pointwise(inputs: int, outputs: int, width: int, result: str) -> Call:
    """A convolution by kernels of 1x1, or one of its gradients."""
    x = torch.randn(16, inputs, width, width)
    weight = torch.randn(outputs, inputs, 1, 1)
    if result == "forward":
        return partial(torch.conv2d, x, weight)
    window = [1, 1], [0, 0], [1, 1], False, [0, 0], 1
    wanted = [result == "data", result == "weight", False]
    grad = torch.randn(16, outputs, width, width)
    return partial(ATEN.convolution_backward, grad, x, weight, None, *window, wanted)


def depthwise_backward(size: int, stride: int, channels: int, width: int) -> Call:
    """Gradients of 16 images and of the weights."""
    x = torch.randn(16, channels, width, width)
    weight = torch.randn(channels, 1, size, size)
    y = torch.conv2d(x, weight, None, stride, size // 2, 1, channels)
    window = [stride] * 2, [size // 2] * 2, [1, 1], False, [0, 0], channels
    grad, wanted = torch.randn_like(y), [True, True, False]
    return partial(ATEN.convolution_backward, grad, x, weight, None, *window, wanted)


def batch_norm(channels: int, width: int) -> Call:
    """A forward call in training."""
    x = torch.randn(16, channels, width, width)
    of_channels = torch.ones(4, channels).unbind()
    mean, variance, weight, bias = (t.clone() for t in of_channels)
    return partial(F.batch_norm, x, mean, variance, weight, bias, training=True)


def max_pool3d(size: int, stride: int, channels: int, side: int) -> Call:
    """Without indices."""
    return partial(F.max_pool3d, torch.randn(2, channels, *[side] * 3), size, stride)


def prelu_backward(channels: int, width: int) -> Call:
    """Gradients of 16 images and of a weight for each channel."""
    x = torch.randn(16, channels, width, width)
    weight = torch.full((1, channels, 1, 1), 0.25)
    return partial(ATEN._prelu_kernel_backward, torch.randn_like(x), x, weight)


def padded(mode: str, images: int) -> Call:
    """Images with a pixel around them."""
    return partial(F.pad, torch.randn(images, 64, 56, 56), (1, 1, 1, 1), mode)


def reflection_backward(images: int) -> Call:
    """The gradient of such images."""
    x, pad = torch.randn(images, 64, 56, 56), (1, 1, 1, 1)
    grad: Tensor = F.pad(x, pad)
    return partial(ATEN.reflection_pad2d_backward, grad, x, pad)


def calls() -> Iterator[tuple[str, Call]]:
    """By name, each made when it is its turn."""
    for size, stride, channels, width in DEPTHWISE:
        name = f"depthwise backward {size}x{size}/{stride}, {channels} of {width}^2"
        yield name, depthwise_backward(size, stride, channels, width)
    for channels, width in NORMED:
        yield (
            f"batch norm training {channels} of {width}^2",
            batch_norm(channels, width),
        )
    for size, stride, channels, side in VOLUMES:
        name = f"max pool 3d {size}^3/{stride}, {channels} of {side}^3"
        yield name, max_pool3d(size, stride, channels, side)
    for channels, width in NORMED[:4]:
        name = f"prelu backward {channels} of {width}^2"
        yield name, prelu_backward(channels, width)
    for order in ("nn", "nt", "tn"):
        for sizes in PRODUCTS:
            name = "x".join(map(str, sizes))
            yield f"product {order} {name}", product(*sizes, order)
    for result in ("forward", "data", "weight"):
        for inputs, outputs, width in POINTWISE:
            name = f"pointwise {result} {inputs} to {outputs} of {width}^2"
            yield name, pointwise(inputs, outputs, width, result)
    for mode in ("constant", "reflect", "replicate"):
        yield f"pad {mode} 64 of 56^2, one image", padded(mode, 1)
    yield "pad constant 64 of 56^2", padded("constant", 16)
    yield "pad reflect backward 64 of 56^2", reflection_backward(16)
    x = torch.randn(16, 64, 112, 112)
    yield "memory: copy 64 of 112^2", x.clone
    yield "memory: sum 64 of 112^2", x.sum


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
    rows: list[tuple[Any, ...]] = []
    print(f"{'call':45} {'stock us':>9} {'our us':>9}   ratio medians")
    with torch.no_grad():
        for name, call in calls():
            if not name.startswith(tuple(options.names)):
                continue
            timed = alternate(
                {"stock": (ptac.disable, call), "ptac": (ptac.enable, call)}
            )
            ptac.disable()
            stock, ours = timed["stock"], timed["ptac"]
            least, medians = ratio(stock, ours), stock.median / ours.median
            print(f"{name:45} {1e6 * stock.best:9.1f} {1e6 * ours.best:9.1f}", end="")
            print(f" {least:7.2f} {medians:7.2f}", flush=True)
            figures = (1e6 * stock.best, 1e6 * ours.best, least, medians)
            rows.append((name, options.threads, *(round(f, 2) for f in figures)))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ("call", "threads", "stock_us", "our_us", "ratio", "medians")
            )
            writer.writerows(rows)


if __name__ == "__main__":
    main()
