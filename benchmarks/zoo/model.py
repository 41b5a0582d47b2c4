"""What a model of the zoo is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Make = Callable[[], tuple[nn.Module, tuple[Tensor, ...], Tensor]]
"""Builds a model with random weights, its inputs and its target."""

MODELS: dict[str, Model] = {}
"""By name, in the order in which they are measured."""


PACKAGES = ("torchvision", "timm", "transformers")
"""Groups of large models. The package of that name brings them, their names begin so,
and they are measured where they are asked for."""


def is_installed(package: str) -> bool:
    """Whether it can be imported; nothing is."""
    return find_spec(package) is not None


@dataclass(frozen=True)
class Model:
    """A model, what it is trained by, and how."""

    make: Make
    loss: Callable[[Tensor, Tensor], Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    group: str

    @property
    def is_large(self) -> bool:
        """Whether it has to be asked for."""
        return self.group in PACKAGES

    @property
    def is_installed(self) -> bool:
        """Whether the package that brings it is there."""
        return not self.is_large or is_installed(self.group)

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
    """Put a model on the list.

    Its group is the package that its name begins with, else the module that has it.
    """
    package = name.partition(" ")[0]

    def add(make: Make) -> Make:
        module = make.__module__.rpartition(".")[2]
        group = package if package in PACKAGES else module
        MODELS[name] = Model(make, loss, optimizer, group)
        return make

    return add


def classes(n: int, n_classes: int) -> Tensor:
    """A target of random classes."""
    return torch.randint(0, n_classes, (n,))
