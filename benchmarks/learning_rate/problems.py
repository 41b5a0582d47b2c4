"""Seven small problems on the data that scikit-learn brings, and their 56 cases.

Digits are divided by 16, other features standardized; 80 % are for training, in an
order that never changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

RATES = (1e-3, 1e-2, 0.1, 1.0)
"""What a user may have begun with."""

MOMENTA = (0.0, 0.9)
BATCH = 32
_SPLIT_SEED, _NOISE_SEED = 1234, 7


@dataclass(frozen=True)
class Data:
    """Features and targets, those for training first."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor

    @property
    def is_regression(self) -> bool:
        """Whether targets are numbers, not classes."""
        return self.y.is_floating_point()

    def loss(self, out: Tensor, y: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """Squared error of numbers, cross-entropy of classes."""
        if self.is_regression:
            return F.mse_loss(out.squeeze(1), y)
        return F.cross_entropy(out, y, label_smoothing=label_smoothing)


@dataclass(frozen=True)
class Problem:
    """Data by scikit-learn's name, the model that learns them, and for how long."""

    name: str
    source: str
    make: Callable[[], nn.Module]
    epochs: int

    def data(self, label_noise: float = 0.0) -> Data:
        """Load; a share of the classes for training may be drawn anew at random."""
        data = _load(self.source)
        if not label_noise or data.is_regression:
            return data
        draw = np.random.RandomState(_NOISE_SEED)
        is_wrong = torch.tensor(draw.rand(len(data.y)) < label_noise)
        others = torch.tensor(draw.randint(0, int(data.y.max()) + 1, len(data.y)))
        return replace(data, y=torch.where(is_wrong, others, data.y))


@dataclass(frozen=True)
class Case:
    """A problem with the momentum and the rate of a user."""

    problem: Problem
    momentum: float
    lr: float

    def __str__(self) -> str:
        return f"{self.problem.name}, momentum {self.momentum:g}, lr {self.lr:g}"


@cache
def _load(source: str) -> Data:
    from sklearn import datasets

    loaded = getattr(datasets, f"load_{source}")()
    x, y = np.asarray(loaded.data, dtype=float), loaded.target
    x = x / 16 if source == "digits" else _standardized(x)
    if source == "diabetes":
        y = _standardized(y)
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(x))
    cut = int(0.8 * len(x))
    features = torch.tensor(x[order], dtype=torch.float32)
    kind = torch.float32 if source == "diabetes" else torch.long
    targets = torch.tensor(y[order], dtype=kind)
    return Data(features[:cut], targets[:cut], features[cut:], targets[cut:])


def _standardized(values: np.ndarray) -> np.ndarray:
    deviation = values.std(0)
    return (values - values.mean(0)) / np.where(deviation == 0, 1, deviation)


def _layers(*widths: int) -> nn.Module:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small_cnn() -> nn.Module:
    """Two convolutions with batch normalization, for rows of 64 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


PROBLEMS = {
    p.name: p
    for p in (
        Problem("digits_logistic", "digits", lambda: _layers(64, 10), 20),
        Problem("digits_mlp", "digits", lambda: _layers(64, 64, 10), 20),
        Problem("digits_cnn", "digits", small_cnn, 5),
        Problem("breast_cancer", "breast_cancer", lambda: _layers(30, 32, 2), 30),
        Problem("wine", "wine", lambda: _layers(13, 32, 3), 60),
        Problem("iris", "iris", lambda: _layers(4, 32, 3), 60),
        Problem("diabetes_mlp", "diabetes", lambda: _layers(10, 64, 1), 40),
    )
}
"""By name."""


def cases(names: tuple[str, ...]) -> list[Case]:
    """Every momentum and rate of these problems."""
    return [
        Case(PROBLEMS[name], momentum, lr)
        for name in names
        for momentum in MOMENTA
        for lr in RATES
    ]
