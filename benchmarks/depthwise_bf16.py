"""Whether depthwise convolutions would gain from bfloat16 at ``numerics="fast"``.

``python -m benchmarks.depthwise_bf16 [--threads N] [--csv FILE]`` prints how long torch
takes with operands cast to bfloat16 and results cast back, divided by our time in
float32; and the same of the operator alone, which finds its operands cast. Above 1 the
kernels of ``"close"`` are ahead. ``--csv FILE`` writes that.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds, ratio

LAYERS = (
    *((32, 112, 3, 1, 1), (144, 56, 3, 1, 16), (96, 112, 3, 2, 16)),
    *((240, 28, 5, 1, 16), (384, 14, 3, 1, 16), (960, 7, 5, 1, 16)),
    (96, 56, 7, 1, 16),
)
"""Channels, width of images, size of kernels, stride, images: as networks have them."""

COLUMNS = ("channels", "width", "kernel", "stride", "images")
FIGURES = ("forward", "forward_alone", "gradients", "gradients_alone")

Call = Callable[..., Any]


def forward(stride: int, size: int, x: Tensor, weight: Tensor) -> Tensor:
    """The layer's results."""
    return torch.conv2d(x, weight, None, stride, size // 2, 1, len(weight))


def backward(
    stride: int, size: int, x: Tensor, weight: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of images and weights."""
    window = [stride] * 2, [size // 2] * 2, [1, 1], False, [0, 0], len(weight)
    wanted = [True, True, False]
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        grad, x, weight, None, *window, wanted
    )
    return of_x, of_weight


def rounded(call: Call, *operands: Tensor) -> list[Tensor]:
    """As a row of reduced precision would do it."""
    made = call(*(x.bfloat16() for x in operands))
    return [x.float() for x in ([made] if isinstance(made, Tensor) else made)]


def slower(op: str, call: Call, *operands: Tensor) -> tuple[float, float]:
    """How many times our time with casts takes, and without."""
    narrow = [x.bfloat16() for x in operands]
    before = _C.counters(op)[0]
    timings = alternate(
        {
            "ptac": (ptac.enable, partial(call, *operands)),
            "casts": (ptac.disable, partial(rounded, call, *operands)),
            "alone": (ptac.disable, partial(call, *narrow)),
        }
    )
    ptac.disable()
    if _C.counters(op)[0] == before:
        raise SystemExit(f"{op} ran stock: no table names a row for it here")
    ours = timings["ptac"]
    return ratio(timings["casts"], ours), ratio(timings["alone"], ours)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
    rows: list[tuple[Any, ...]] = []
    print(f"{' '.join(COLUMNS):37} forward (alone)  gradients")
    with torch.inference_mode():
        for channels, width, size, stride, n in LAYERS:
            x = torch.randn(n, channels, width, width)
            weight = torch.randn(channels, 1, size, size)
            once, back = (partial(f, stride, size) for f in (forward, backward))
            grad = torch.randn_like(once(x, weight))
            figures = (
                *slower("depthwise_conv2d", once, x, weight),
                *slower("depthwise_conv2d_backward", back, x, weight, grad),
            )
            there, there_alone, gradients, gradients_alone = figures
            print(f"{channels:8} {width:5} {size:6} {stride:6} {n:6}     ", end="")
            print(f"{there:7.1f} ({there_alone:.1f})", end="")
            print(f"{gradients:11.1f} ({gradients_alone:.1f})", flush=True)
            figures = tuple(round(figure, 2) for figure in figures)
            rows.append((channels, width, size, stride, n, *figures))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow((*COLUMNS, *FIGURES))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
