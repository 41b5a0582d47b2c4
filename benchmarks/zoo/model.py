"""What a model of the zoo is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...], Tensor]]
"""Builds a model with random weights, its inputs and its target."""

MODELS: dict[str, Model] = {}
"""By name, in the order in which they are measured."""


@dataclass(frozen=True)
class Model:
    """A model, what it is trained by, and how."""

    make: Make
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]

    def infer(self) -> Callable[[], Any]:
        """A call that computes outputs without gradients."""
        torch.manual_seed(0)
        net, inputs, _ = self.make()
        net.eval()

        def call() -> Any:
            with torch.no_grad():
                return net(*inputs)

        return call

    def train(self) -> Callable[[], Any]:
        """A call that does one training step."""
        torch.manual_seed(0)
        net, inputs, target = self.make()
        optimizer = self.optimizer(net.parameters())

        def step() -> None:
            optimizer.zero_grad()
            self.loss(net(*inputs), target).backward()
            optimizer.step()

        return step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=1e-4, momentum=0.9)


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Adam with its defaults but the rate."""
    return torch.optim.Adam(parameters, lr=1e-5)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """AdamW with its defaults but the rate."""
    return torch.optim.AdamW(parameters, lr=1e-5)


def model(
    name: str,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    optimizer: Callable[..., torch.optim.Optimizer] = adam,
) -> Callable[[Make], Make]:
    """Put a model on the list."""

    def add(make: Make) -> Make:
        MODELS[name] = Model(make, loss, optimizer)
        return make

    return add


def classes(n: int, n_classes: int) -> Tensor:
    """A target of random classes."""
    return torch.randint(0, n_classes, (n,))
