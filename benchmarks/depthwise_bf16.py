"""Whether depthwise convolutions would gain from bfloat16 at ``numerics="fast"``.

``python -m benchmarks.depthwise_bf16 [--threads N]`` prints how long torch takes with
operands cast to bfloat16 and results cast back, divided by our time in float32; behind
it the same of the operator alone, which finds its operands cast. Above 1 the kernels of
``"close"`` are ahead.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds, ratio

LAYERS = (
    *((32, 112, 3, 1, 1), (144, 56, 3, 1, 16), (96, 112, 3, 2, 16)),
    *((240, 28, 5, 1, 16), (384, 14, 3, 1, 16), (960, 7, 5, 1, 16)),
    *((96, 56, 7, 1, 16), (384, 14, 7, 1, 16)),
)
"""Channels, width of images, size of kernels, stride, images: as networks have them."""

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


def slower(call: Call, *operands: Tensor) -> tuple[float, float]:
    """How many times our time with casts takes, and without."""
    narrow = [x.bfloat16() for x in operands]
    timings = alternate(
        {
            "ptac": (ptac.enable, partial(call, *operands)),
            "casts": (ptac.disable, partial(rounded, call, *operands)),
            "alone": (ptac.disable, partial(call, *narrow)),
        }
    )
    ptac.disable()
    ours = timings["ptac"]
    return ratio(timings["casts"], ours), ratio(timings["alone"], ours)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    raise_malloc_thresholds()
    print(f"{'channels width kernel stride images':37} forward (alone)  gradients")
    with torch.inference_mode():
        for channels, width, size, stride, n in LAYERS:
            x = torch.randn(n, channels, width, width)
            weight = torch.randn(channels, 1, size, size)
            once = partial(forward, stride, size)
            grad = torch.randn_like(once(x, weight))
            there = slower(once, x, weight)
            back = slower(partial(backward, stride, size), x, weight, grad)
            layer = f"{channels:8} {width:5} {size:6} {stride:6} {n:6}"
            print(f"{layer:37} {there[0]:7.1f} ({there[1]:.1f})", end="")
            print(f"{back[0]:11.1f} ({back[1]:.1f})", flush=True)


if __name__ == "__main__":
    main()
