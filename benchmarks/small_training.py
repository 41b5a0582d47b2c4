"""Training of small networks after a bare ``enable()`` and without, whole steps.

``python -m benchmarks.small_training`` prints microseconds a step, medians of
interleaved blocks, and the median of their ratios; ``--threads 1 2`` measures with so
many, and ``--csv FILE`` writes it. A step is forward, loss, ``zero_grad``, backward and
the optimizer.
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.small_calls import Policy, block, paired

ROUNDS = 21
BLOCK_SECONDS = 0.02
WARM = 3

Step = Callable[[], object]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


def deep_q_learning() -> Step:
    """A step of PyTorch's tutorial of DQN, from a batch of 128 transitions."""
    net, target, loss = Policy(128), Policy(128), nn.SmoothL1Loss()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, amsgrad=True)
    states, next_states = torch.randn(128, 4), torch.randn(128, 4)
    actions, rewards = torch.randint(2, (128, 1)), torch.randn(128)

    def step() -> None:
        values = net(states).gather(1, actions)
        with torch.no_grad():
            best = target(next_states).max(1).values
        optimizer.zero_grad()
        loss(values, (rewards + 0.99 * best).unsqueeze(1)).backward()
        torch.nn.utils.clip_grad_value_(net.parameters(), 100)
        optimizer.step()

    return step


def choosing() -> Step:
    """An action for one state."""
    net, state = Policy(128), torch.randn(1, 4)

    def step() -> Tensor:
        with torch.no_grad():
            return net(state).max(1).indices.view(1, 1)

    return step


def classifier(net: nn.Module, n: int, inputs: int, optimizer: Optimizer) -> Step:
    """A step of a classifier, of n rows."""
    x, y, loss = torch.randn(n, inputs), torch.randint(2, (n,)), nn.CrossEntropyLoss()
    stepping = optimizer(net.parameters())

    def step() -> None:
        stepping.zero_grad()
        loss(net(x), y).backward()
        stepping.step()

    return step


def tabular() -> Step:
    """Batch normalization and dropout, 32 rows, Adam."""
    net = nn.Sequential(
        *(nn.Linear(32, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.1)),
        *(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)),
        nn.Linear(64, 2),
    )
    return classifier(net, 32, 32, torch.optim.Adam)


def layer(n: int) -> Step:
    """The article's Linear(1000, 10), SGD."""
    sgd = torch.optim.SGD
    return classifier(nn.Linear(1000, 10), n, 1000, lambda p: sgd(p, lr=0.01))


def perceptron(width: int, inputs: int, n: int, optimizer: Optimizer) -> Step:
    """Layers of one width, and ten classes."""
    net = nn.Sequential(
        *(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()),
        nn.Linear(width, 10),
    )
    return classifier(net, n, inputs, optimizer)


CASES: dict[str, Callable[[], Step]] = {
    "DQN 4-128-128-2, one state, inference": choosing,
    "DQN 4-128-128-2, 128 transitions, AdamW": deep_q_learning,
    "tabular 32-128-64-2, 32 rows, Adam": tabular,
    "Linear(1000, 10), 32 rows, SGD": lambda: layer(32),
    "Linear(1000, 10), 64 rows, SGD": lambda: layer(64),
    "MLP 784-512-512-10, 64 rows, Adam": lambda: perceptron(
        512, 784, 64, torch.optim.Adam
    ),
    "MLP 64-64-64-10, 32 rows, SGD": lambda: perceptron(
        64, 64, 32, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)
    ),
}


def measure(make: Callable[[], Step]) -> tuple[float, float, float]:
    """Medians of stock and of ours, each on a network of its own, and the ratio."""
    torch.manual_seed(0)
    stock, ours = make(), make()
    block(stock, WARM)
    n = max(WARM, int(BLOCK_SECONDS * 1e6 / block(stock, WARM)))
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        block(stock, WARM)
        times[0].append(block(stock, n))
        with ptac.enable():
            block(ours, WARM)
            times[1].append(block(ours, n))
    return statistics.median(times[0]), statistics.median(times[1]), paired(*times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    options = parser.parse_args()
    rows = []
    for n_threads in options.threads:
        torch.set_num_threads(n_threads)
        for name, make in CASES.items():
            stock, ours, ratio = measure(make)
            rows.append([name, n_threads, f"{stock:.1f}", f"{ours:.1f}"])
            rows[-1].append(f"{ratio:.3f}")
            print(*rows[-1], sep=", ", flush=True)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["network", "threads", "stock_us", "ours_us", "ratio"])
            writer.writerows(rows)


if __name__ == "__main__":
    main()
