"""Training of small networks after a bare ``enable()`` and without, whole steps.

``python -m benchmarks.small_training`` prints microseconds a step, medians of
interleaved blocks, and the ratio; ``--threads N`` has torch use so many. The step is
forward, loss, ``zero_grad``, backward and the optimizer.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

import pai_torchacc as ptac

ROUNDS = 21
BLOCK_SECONDS = 0.02
WARM = 3

Step = Callable[[], object]
Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Values(nn.Module):
    """A network of values of actions, as PyTorch's tutorial of DQN has it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 128), nn.Linear(128, 128)
        self.fc3 = nn.Linear(128, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the values."""
        x = torch.relu(self.fc1(x))
        return self.fc3(torch.relu(self.fc2(x)))


def deep_q_learning() -> Step:
    """A step of the tutorial, from a batch of 128 transitions."""
    net, target, loss = Values(), Values(), nn.SmoothL1Loss()
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
    net, state = Values(), torch.randn(1, 4)

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


def block(step: Step, n: int) -> float:
    """Microseconds a step."""
    start = time.perf_counter()
    for _ in range(n):
        step()
    return (time.perf_counter() - start) / n * 1e6


def measure(make: Callable[[], Step]) -> tuple[float, float]:
    """Medians of stock and of ours, by turns, each on a network of its own."""
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
    return statistics.median(times[0]), statistics.median(times[1])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    for name, make in CASES.items():
        stock, ours = measure(make)
        print(f"{name:42} {stock:9.1f} {ours:9.1f} us {stock / ours:6.2f}x", flush=True)


if __name__ == "__main__":
    main()
