"""What calls cost after a bare ``enable()`` and without: modules and expressions.

``python -m benchmarks.small_calls`` prints microseconds a call, medians of interleaved
blocks, the median of the ratios of neighbouring blocks, and the ratio of the least;
``--csv FILE`` writes them, and ``--threads N`` has torch use so many.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import pai_torchacc as ptac

ROUNDS = 25
BLOCK_SECONDS = 0.02
WARM = 20
"""Calls before each block: large results meet another state of malloc's."""

Call = Callable[[], object]


class Block(nn.Module):
    """A layer and its activation, called one after the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc, self.act = nn.Linear(width, width), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Compute a layer."""
        return self.act(self.fc(x))


class Policy(nn.Module):
    """A network as programs of reinforcement learning write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, width), nn.Linear(width, width)
        self.fc3 = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the values of the actions."""
        x = torch.relu(self.fc1(x))
        return self.fc3(torch.relu(self.fc2(x)))


def tabular() -> nn.Module:
    """A network for tables."""
    return nn.Sequential(
        *(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)),
    ).eval()


def expression(n: int, k: int, m: int) -> Call:
    """The article's own: y has as many rows as the result has columns."""
    x, y = torch.randn(n, k), torch.randn(m, k)
    return lambda: torch.relu(torch.matmul(x, y.T) + 0.5)


def of_module(net: nn.Module, *shape: int) -> Call:
    """Call a module with a tensor of that shape."""
    x = torch.randn(shape)
    return lambda: net(x)


def cases() -> dict[str, tuple[bool, Call]]:
    """By name: whether gradients are recorded, and the call."""
    small = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    found: dict[str, tuple[bool, Call]] = {}
    for with_gradient in (False, True):
        suffix = ", with gradient" if with_gradient else ""
        for name, net, shape in (
            ("nn.Linear 4x4", nn.Linear(4, 4), (4, 4)),
            ("act(fc(x)) in a module", Block(4), (4, 4)),
            ("Sequential(Linear, ReLU, Linear)", small, (4, 4)),
            ("policy 4-64-64-2, one row", Policy(64), (1, 4)),
            ("tabular 32-128-64-2, eval, 32 rows", tabular(), (32, 32)),
            ("nn.Linear(1000, 10), 32 rows", nn.Linear(1000, 10), (32, 1000)),
            ("nn.LayerNorm(64)", nn.LayerNorm(64), (8, 64)),
            ("nn.Conv2d 1x1", nn.Conv2d(2, 2, 1), (1, 2, 2, 2)),
            ("nn.Dropout in eval mode", nn.Dropout().eval(), (4, 4)),
        ):
            found[name + suffix] = (with_gradient, of_module(net, *shape))
    for n, k, m in (
        *((4, 4, 4), (8, 8, 8), (64, 64, 64), (64, 1000, 64), (256, 256, 256)),
        *((1000, 1000, 1000), (2000, 32, 2000)),
    ):
        name = f"relu(matmul(x, y.T) + 0.5), {n}x{k} by {m}x{k}"
        found[name] = (False, expression(n, k, m))
    wide = torch.randn(64, 1000)
    name = "matmul(x, y.T), 64x1000 by 64x1000"
    found[name] = (False, lambda: torch.matmul(wide, wide.T))
    x = torch.randn(4, 4)
    wanting = torch.randn(4, 4, requires_grad=True)
    found["torch.relu"] = (False, lambda: torch.relu(x))
    found["x + 0.5"] = (False, lambda: x + 0.5)
    found["x * x"] = (False, lambda: x * x)
    found["x @ x"] = (False, lambda: x @ x)
    found["torch.relu, with gradient: missed"] = (True, lambda: torch.relu(wanting))
    found["x + 0.5 of doubles: missed"] = (False, of_doubles())
    return found


def of_doubles() -> Call:
    """Call what no row takes."""
    x = torch.randn(4, 4, dtype=torch.float64)
    return lambda: x + 0.5


def block(call: Call, n: int) -> float:
    """Microseconds a call."""
    start = time.perf_counter()
    for _ in range(n):
        call()
    return (time.perf_counter() - start) / n * 1e6


def paired(stock: list[float], ours: list[float]) -> float:
    """The median of the rounds' ratios: a machine's speed drifts between rounds."""
    return statistics.median(s / o for s, o in zip(stock, ours, strict=True))


def measure(call: Call) -> tuple[list[float], list[float]]:
    """Blocks of stock and of ours, by turns."""
    block(call, 3)
    n = max(3, int(BLOCK_SECONDS * 1e6 / block(call, 3)))
    stock, ours = [], []
    for _ in range(ROUNDS):
        block(call, min(n, WARM))
        stock.append(block(call, n))
        with ptac.enable():
            block(call, min(n, WARM))
            ours.append(block(call, n))
    return stock, ours


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    print(f"{'call':48} {'stock':>9} {'ours':>9} {'median':>7} {'least':>7}")
    for name, (with_gradient, call) in cases().items():
        with torch.set_grad_enabled(with_gradient):
            stock, ours = measure(call)
        medians = statistics.median(stock), statistics.median(ours)
        ratio, of_least = paired(stock, ours), min(stock) / min(ours)
        print(
            f"{name:48} {medians[0]:9.2f} {medians[1]:9.2f} {ratio:6.2f}x "
            f"{of_least:6.2f}x",
            flush=True,
        )
        rows.append(
            [name, options.threads, *(f"{x:.3f}" for x in (*medians, ratio, of_least))]
        )
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["call", "threads", "stock_us", "ours_us", "ratio", "ratio_of_least"]
            )
            writer.writerows(rows)


if __name__ == "__main__":
    main()
