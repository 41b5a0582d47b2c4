"""The plain loop, the same for every method."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.learning_rate.methods import Method
from benchmarks.learning_rate.problems import BATCH, Case, Data

FEWEST_EPOCHS = 2


@dataclass(frozen=True)
class Budget:
    """What may differ from the suite's own settings, for every method alike."""

    batch: int = BATCH
    scale: float = 1.0
    """By how much to multiply epochs."""
    label_smoothing: float = 0.0
    label_noise: float = 0.0

    def epochs(self, of_problem: int) -> int:
        """How many to train for."""
        return max(FEWEST_EPOCHS, int(of_problem * self.scale))


@dataclass(frozen=True)
class Outcome:
    """Of one training: losses are of all training data, in eval mode."""

    loss: float
    untrained: float
    accuracy: float
    """Of test data in percent; of numbers, not a number."""
    curve: tuple[float, ...] = ()
    """The loss of every step, where it was asked for."""

    @property
    def diverged(self) -> bool:
        """Whether what came out is no number."""
        return not math.isfinite(self.loss)

    @property
    def counted(self) -> float:
        """The loss; the untrained model's where training has made it no better."""
        return self.untrained if self.diverged else min(self.loss, self.untrained)


def train(
    case: Case,
    method: Method,
    seed: int,
    budget: Budget | None = None,
    with_curve: bool = False,
) -> Outcome:
    """Train a new model; its weights and its batches follow from the seed."""
    budget = budget or Budget()
    data = case.problem.data(budget.label_noise)
    torch.manual_seed(seed)
    model = case.problem.make()
    untrained = _loss(model, data)
    n_batches = len(data.x) // budget.batch
    curve: list[Tensor] = []
    with method.around():
        optimizer = method.make(model.parameters(), case)
        before_step = method.rate(case, n_batches) if method.rate else None
        generator = torch.Generator().manual_seed(seed)
        model.train()
        set_mode(optimizer, "train")
        for _ in range(budget.epochs(case.problem.epochs)):
            order = torch.randperm(len(data.x), generator=generator)
            for part in order[: n_batches * budget.batch].split(budget.batch):
                optimizer.zero_grad()
                out = model(data.x[part])
                loss = data.loss(out, data.y[part], budget.label_smoothing)
                loss.backward()
                if before_step:
                    before_step(optimizer, loss.item())
                optimizer.step()
                if with_curve:
                    curve.append(loss.detach())
    if set_mode(optimizer, "eval"):
        _refresh_statistics(model, data, budget.batch)
    accuracy = math.nan if data.is_regression else _accuracy(model, data)
    final = _loss(model, data)
    return Outcome(final, untrained, accuracy, tuple(map(float, curve)))


def set_mode(optimizer: Optimizer, mode: str) -> bool:
    """Call an optimizer's ``train()`` or ``eval()``; whether it has modes at all."""
    change = getattr(optimizer, mode, None)
    if change is not None:
        change()
    return change is not None


def _refresh_statistics(model: nn.Module, data: Data, batch: int) -> None:
    """Running statistics of weights that have just been averaged."""
    model.train()
    with torch.no_grad():
        for part in data.x.split(batch):
            model(part)


def _loss(model: nn.Module, data: Data) -> float:
    model.eval()
    with torch.no_grad():
        return data.loss(model(data.x), data.y).item()


def _accuracy(model: nn.Module, data: Data) -> float:
    model.eval()
    with torch.no_grad():
        right = model(data.test_x).argmax(1) == data.test_y
    return 100 * right.double().mean().item()
