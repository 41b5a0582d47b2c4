"""Training by accelerated convolutions goes as it does by stock's.

A small residual network learns scikit-learn's digits, in 150 steps (in ``make check``
300) from each of three seeds, which choose weights and batches. Noise is what stock
itself shows between the seeds: the largest less the smallest of three figures, measured
in the same run.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import native
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

pytest.importorskip("sklearn", reason="scikit-learn has the digits")

OPS = ("conv2d", "conv2d_backward")
SEEDS, STEPS, BATCH, WINDOW = 3, 300 if native.FULL else 150, 32, 50

RATE = 0.02
"""Of learning; from 0.05 on losses jump now and then, by stock as by ours."""

LEAST_LOSS = 0.01
"""Where seeds happen to agree; losses fall from 2.3 to 0.01."""

LEAST_ACCURACY = 0.015
"""Five of 360 images."""


class Block(nn.Module):
    """What ResNet is made of: two convolutions and a way around them."""

    def __init__(self, c: int, k: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(c, k, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(k)
        self.conv2 = nn.Conv2d(k, k, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(k)
        self.around = nn.Sequential()
        if stride > 1:
            self.around.append(nn.Conv2d(c, k, 1, stride, bias=False))
            self.around.append(nn.BatchNorm2d(k))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


def make_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        Block(16, 16, 1),
        Block(16, 32, 2),
        Block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


SERVED, STRIDED_OR_1X1 = 5, 4
"""Convolutions of the model: of 3x3 at stride 1, and the others."""


@functools.cache
def digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Images [N, 1, 16, 16] in 0..1 and their classes, to learn and to be asked."""
    from sklearn import datasets

    data = datasets.load_digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    images, classes = F.interpolate(images, scale_factor=2), torch.tensor(data.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    learnt, asked = order[:-360], order[-360:]
    return (images[learnt], classes[learnt]), (images[asked], classes[asked])


@dataclass
class Run:
    """What a training has shown."""

    losses: Tensor
    accuracy: float


def train(seed: int) -> Run:
    torch.manual_seed(seed)
    (images, classes), asked = digits()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        part = torch.randint(len(images), (BATCH,))
        loss = F.cross_entropy(model(images[part]), classes[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Run(torch.tensor(losses), accuracy_of(model, *asked))


def accuracy_of(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    with torch.no_grad():
        return (model.eval()(images).argmax(1) == classes).float().mean().item()


@functools.cache
def runs() -> tuple[list[Run], list[Run]]:
    """Stock's of all seeds, and ours, whose calls are counted exactly."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # layers are so small that more take longer
    try:
        stock = [train(seed) for seed in range(SEEDS)]
        with switching.accelerated(*OPS):
            ours = [counted_training(seed) for seed in range(SEEDS)]
    finally:
        torch.set_num_threads(before)
    return stock, ours


def counted_training(seed: int) -> Run:
    hits = [switching.hits(op) for op in OPS]
    run = train(seed)
    check_counts(*hits)
    return run


def check_counts(forward: switching.Hits, backward: switching.Hits) -> None:
    """Of one training, and of one evaluation; images have no gradient."""
    assert forward.accelerated == SERVED * (STEPS + 1)
    assert forward.forwarded == {"shape": STRIDED_OR_1X1 * (STEPS + 1)}
    assert backward.accelerated == (2 * SERVED - 1) * STEPS
    assert backward.forwarded == {"shape": 2 * STRIDED_OR_1X1 * STEPS}
    assert forward.failed == backward.failed == 0


def curves(of: list[Run]) -> Tensor:
    """Losses [seed, window], the mean of so many steps each."""
    return torch.stack([run.losses.view(-1, WINDOW).mean(1) for run in of])


def between_seeds(figures: Tensor) -> Tensor:
    """How far seeds are apart, in the first dimension."""
    return figures.amax(0) - figures.amin(0)


@pytest.mark.long
def test_losses_begin_alike() -> None:
    """Before roundings have grown: a step by step of wrong gradients would show."""
    stock, ours = (torch.stack([r.losses[:5] for r in of]) for of in runs())
    torch.testing.assert_close(ours, stock, rtol=1e-3, atol=1e-4)


def test_losses_fall_alike() -> None:
    stock, ours = map(curves, runs())
    noise = between_seeds(stock) + LEAST_LOSS
    assert (stock[:, -1] < stock[:, 0] / 4).all(), "stock has learnt nothing"
    assert ((ours - stock).abs() <= noise).all(), (ours, stock)
    # The mean of three has less of it.
    assert ((ours - stock).mean(0).abs() <= noise / 3**0.5).all(), (ours, stock)


def test_as_much_is_learnt() -> None:
    stock, ours = (torch.tensor([r.accuracy for r in of]) for of in runs())
    noise = between_seeds(stock) + LEAST_ACCURACY
    assert (stock > 0.9).all(), "stock has learnt nothing"
    assert ((ours - stock).abs() <= noise).all(), (ours, stock)
