"""Whether a gain at measured shapes is a loss at their neighbours.

``python -m benchmarks.neighbours [--seconds S] [--threads N] [--seed N] [KIND ...]``
draws shapes of convolutions, their gradients and linear layers, and times those that
the tables of ``enable()`` have one of our rows for beside stock, in turn. By row it
prints how many there were, the geometric mean of stock's time divided by ours, and the
shapes where that is under 0.95; with ``--all`` the others, too. Weights of layers are
several, which the caches do not hold at once.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac
from benchmarks.extension import last_row
from pai_torchacc import _C
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds, ratio

SLOWER = 0.95
MOST_WORK = 8e8
OF_FEW = 0.25
"""The share of convolutions that keep their channels, in groups of few."""

WEIGHTS = 30_000_000
"""Bytes of the weights of one kind of layer."""

Drawn = tuple[str, str, Callable[[], object]]
"""What counts it, the shape in words, the call."""


class Geometry(NamedTuple):
    """A convolution of square images."""

    n: int
    channels: int
    outputs: int
    width: int
    size: int
    stride: int
    padding: int
    dilation: int
    groups: int
    is_last: bool

    def __str__(self) -> str:
        words = f"{self.n} x {self.channels} x {self.width}^2 to {self.outputs}"
        words += f" by {self.size}^2, stride {self.stride}, padding {self.padding}"
        words += f", dilation {self.dilation}" * (self.dilation > 1)
        words += f", {self.groups} groups" * (self.groups > 1)
        return words + ", channels last" * self.is_last

    @property
    def work(self) -> int:
        """Multiply-adds; 0: of none that there is."""
        reach = (self.size - 1) * self.dilation + 1
        room = self.width + 2 * self.padding - reach
        if room < 0 or self.channels % self.groups or self.outputs % self.groups:
            return 0
        places = self.n * (room // self.stride + 1) ** 2
        return places * self.channels // self.groups * self.outputs * self.size**2

    def tensors(self) -> tuple[Tensor, Tensor]:
        """Images and weights."""
        x = torch.randn(self.n, self.channels, self.width, self.width)
        of_group = self.channels // self.groups
        w = torch.randn(self.outputs, of_group, self.size, self.size)
        if self.is_last:
            x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
        return x, w

    def forward(self) -> Callable[[], Tensor]:
        """What convolves."""
        x, w = self.tensors()
        options = self.stride, self.padding, self.dilation, self.groups
        return lambda: F.conv2d(x, w, None, *options)

    def gradient(self, side: str) -> Callable[[], object]:
        """What computes the gradient of the data, or of the weight."""
        x, w = self.tensors()
        pairs = [[n, n] for n in (self.stride, self.padding, self.dilation)]
        grad = torch.randn_like(F.conv2d(x, w, None, *pairs, self.groups))
        mask = [side == "data", side == "weight", False]
        rest = [None, *pairs, False, [0, 0], self.groups, mask]
        return lambda: torch.ops.aten.convolution_backward(grad, x, w, *rest)


def drawn_geometry(draw: random.Random) -> Geometry | None:
    """One, or None where such a one would be empty or too much."""
    size = draw.choice([1, 1, 2, 3, 3, 3, 4, 5, 7, 8])
    drawn = Geometry(
        n=draw.choice([1, 1, 1, 2, 4, 8, 16, 32]),
        channels=draw.choice([3, 4, 8, 16, 24, 32, 64, 96, 128, 256, 512, 1024]),
        outputs=draw.choice([4, 8, 10, 16, 24, 32, 64, 96, 128, 256, 512, 1000]),
        width=draw.choice([1, 2, 4, 5, 6, 7, 8, 9, 14, 16, 28, 56, 112]),
        size=size,
        stride=draw.choice([1, 1, 2, 2, 4, size]),
        padding=draw.choice([0, size // 2]),
        dilation=draw.choice([1, 1, 1, 2]),
        groups=draw.choice([1, 1, 1, 1, 4, 8]),
        is_last=draw.choice([False, True]),
    )
    if draw.random() < OF_FEW:
        groups = max(1, drawn.channels // draw.choice([4, 8, 16, 32]))
        drawn = drawn._replace(outputs=drawn.channels, groups=groups)
    return drawn if 0 < drawn.work <= MOST_WORK else None


def convolution(draw: random.Random) -> Drawn | None:
    """A convolution without gradients."""
    drawn = drawn_geometry(draw)
    return ("conv2d", str(drawn), drawn.forward()) if drawn else None


def gradient(draw: random.Random) -> Drawn | None:
    """One of the two gradients of a convolution."""
    drawn = drawn_geometry(draw)
    side = draw.choice(["data", "weight"])
    if drawn is None:
        return None
    return "conv2d_backward", f"{side} of {drawn}", drawn.gradient(side)


def linear(draw: random.Random) -> Drawn:
    """Some layers of one size, one after the other."""
    m = draw.choice([*range(1, 70), 80, 96, 100, 128, 192, 256])
    k = draw.choice([64, 100, 128, 256, 300, 512, 768, 1000, 1024, 2048, 3072])
    n = draw.choice([64, 100, 256, 400, 512, 768, 1000, 1024, 3072])
    x, bias = torch.randn(m, k), torch.randn(n)
    weights = [torch.randn(n, k) for _ in range(min(20, 1 + WEIGHTS // (4 * n * k)))]
    words = f"{m} x {k} x {n}, {len(weights)} weights"
    return "addmm", words, lambda: [F.linear(x, w, bias) for w in weights]


KINDS: dict[str, Callable[[random.Random], Drawn | None]] = {
    "convolution": convolution,
    "gradient": gradient,
    "linear": linear,
}


def measured(drawn: Drawn) -> tuple[str, float] | None:
    """The row that serves it and how many times as fast; None where stock does."""
    op, _, call = drawn
    with ptac.enable():
        before = _C.counters(op)[0]
        call()
        if _C.counters(op)[0] == before:
            return None
        row = last_row(op)
    timings = alternate(
        {"stock": (ptac.disable, call), "ours": (ptac.enable, call)}, 10, 0.003
    )
    ptac.disable()
    return f"{op} {row}", ratio(timings["stock"], timings["ours"])


def drawing_parser(text: str, seconds: float) -> argparse.ArgumentParser:
    """Options of what draws shapes for some time."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=seconds)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def started(options: argparse.Namespace) -> random.Random:
    """What is drawn by, in a process set up as ``options`` say."""
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
    return random.Random(options.seed)


def main() -> None:
    """Draw, time and print."""
    parser = drawing_parser(__doc__, seconds=60)
    parser.add_argument("--all", action="store_true", help="print every shape")
    parser.add_argument("kinds", nargs="*", default=[*KINDS], metavar="KIND")
    options = parser.parse_args()
    draw = started(options)
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    until = time.monotonic() + options.seconds
    with torch.no_grad():
        while time.monotonic() < until:
            drawn = KINDS[draw.choice(options.kinds)](draw)
            if drawn and (result := measured(drawn)):
                found[result[0]].append((result[1], drawn[1]))
    for row, ratios in sorted(found.items()):
        mean = statistics.geometric_mean(r for r, _ in ratios)
        n_slow = sum(r < SLOWER for r, _ in ratios)
        print(f"{row}: {len(ratios)}, mean {mean:.2f}, {n_slow} under {SLOWER}")
        for times, words in sorted(ratios):
            if times < SLOWER or options.all:
                print(f"    {times:.2f}  {words}")
    served = [r for ratios in found.values() for r, _ in ratios]
    if served:
        mean = math.exp(statistics.fmean(map(math.log, served)))
        print(f"all: {len(served)}, mean {mean:.2f}, least {min(served):.2f}")


if __name__ == "__main__":
    main()
