"""Steps by graphs and ones made as ever, of twins, side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from planning import planned_of
from stepping import plain
from torch import Tensor, nn

import pai_torchacc as ptac

AHEAD = 4
"""Calls of a kind before the one that is captured."""


def adam(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01, capturable=True, **options)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def replays(target: Any) -> int:
    return planned_of(target).counts()["planned_calls"]


def graphs(target: Any) -> int:
    return planned_of(target).counts()["graphs"]


def reasons(target: Any) -> list[str]:
    return list(planned_of(target).counts()["reasons"])


class Net(nn.Module):
    """Draws random numbers, and keeps statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.body(x)))


class Twins:
    """A step by graphs and one made as ever, of twins, side by side."""

    def __init__(
        self,
        model: nn.Module,
        build: Callable[..., Any] = plain,
        make: Callable[[Any], torch.optim.Optimizer] = sgd,
        on_refusal: Any = "raise",
    ):
        self.models = model, copy.deepcopy(model)
        self.optimizers = [make(one.parameters()) for one in self.models]
        pairs = zip(self.models, self.optimizers, strict=True)
        mine, self.stock = (build(*pair) for pair in pairs)
        self.step = ptac.optimize(mine, on_refusal=on_refusal)

    def call(self, *batch: Tensor) -> Tensor:
        """One step of both, which end alike to the bit."""
        before = torch.get_rng_state()
        ours = self.step(*batch)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        theirs = self.stock(*batch)
        assert torch.equal(after, torch.get_rng_state())
        alike(ours, theirs)
        self.check()
        return ours

    def check(self) -> None:
        one, other = self.models
        for a, b in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(a, b)
            assert (a.grad is None) == (b.grad is None)
            assert a.grad is None or torch.equal(a.grad, b.grad)
        for a, b in zip(one.buffers(), other.buffers(), strict=True):
            assert torch.equal(a, b)

    def both(self, do: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
        for pair in zip(self.models, self.optimizers, strict=True):
            do(*pair)


def alike(ours: Any, theirs: Any) -> None:
    if isinstance(ours, Tensor):
        assert torch.equal(ours, theirs)
        assert ours.stride() == theirs.stride()
        return
    assert type(ours) is type(theirs)
    for one, other in zip(ours, theirs, strict=True):
        alike(one, other)


def captured(function: Any, *args: Any, n: int = AHEAD + 2) -> Any:
    """Call it until it is replayed; its last result."""
    function = ptac.optimize(function, on_refusal="raise")
    for _ in range(n):
        result = function(*args)
    assert replays(function) == n - AHEAD
    return function, result
