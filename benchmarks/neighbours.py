"""Whether a gain at measured shapes is a loss at their neighbours.

``python -m benchmarks.neighbours [--seconds S] [--threads N] [--seed N] [KIND ...]``
draws shapes of convolutions and linear layers without gradients, and times those that
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

import torch
import torch.nn.functional as F

import pai_torchacc as ptac
from benchmarks.extension import last_row
from pai_torchacc import _C
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds, ratio

SLOWER = 0.95
MOST_WORK = 4e8
WEIGHTS = 30_000_000
"""Bytes of the weights of one kind of layer."""

Drawn = tuple[str, str, Callable[[], object]]
"""What counts it, the shape in words, the call."""


def convolution(draw: random.Random) -> Drawn | None:
    """One of any geometry, or None where such a one would be empty or too much."""
    size = draw.choice([1, 1, 2, 3, 3, 3, 4, 5, 7, 8])
    stride = draw.choice([1, 1, 2, 2, 4, size])
    padding = draw.choice([0, size // 2])
    width = draw.choice([1, 2, 4, 5, 6, 7, 8, 9, 14, 16, 28, 56])
    n = draw.choice([1, 1, 1, 2, 4, 8, 16, 32])
    channels = draw.choice([3, 4, 8, 16, 24, 32, 64, 96, 128, 256, 512, 1024])
    outputs = draw.choice([4, 8, 10, 16, 24, 32, 64, 96, 128, 256, 512, 1000])
    groups = draw.choice([1, 1, 1, 1, 4, 8])
    is_last = draw.choice([False, True])
    if width + 2 * padding < size or channels % groups or outputs % groups:
        return None
    places = n * ((width + 2 * padding - size) // stride + 1) ** 2
    if places * channels // groups * outputs * size**2 > MOST_WORK:
        return None
    layout = torch.channels_last if is_last else torch.contiguous_format
    x = torch.randn(n, channels, width, width).to(memory_format=layout)
    w = torch.randn(outputs, channels // groups, size, size).to(memory_format=layout)
    words = f"{(*x.shape,)} by {(*w.shape,)}, stride {stride}, padding {padding}"
    words += f", {groups} groups" * (groups > 1) + ", channels last" * is_last
    return "conv2d", words, lambda: F.conv2d(x, w, None, stride, padding, 1, groups)


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


def main() -> None:
    """Draw, time and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="print every shape")
    parser.add_argument("kinds", nargs="*", default=[*KINDS], metavar="KIND")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
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
