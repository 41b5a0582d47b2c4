"""A small network, and running programs around it by stock and accelerated.

Tolerances are those of torch.testing: level close is held in other files, here nothing
may be structurally wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import switching
import torch
from torch import Tensor, nn

from pai_torchacc import _C

TRAINING = (
    "max_pool2d",
    "max_pool2d_backward",
    "linear_act",
    "linear_act_backward",
    "cross_entropy",
    "cross_entropy_backward",
)
"""What one training step uses."""


class Cases(dict[str, tuple[Callable[[], Any], tuple[str, ...]]]):
    """Programs by name, each with the operators that its accelerated run must use."""

    def __call__(self, *expected: str) -> Callable[[Any], Any]:
        def add(function: Callable[[], Any]) -> Callable[[], Any]:
            self[function.__name__] = function, expected
            return function

        return add


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(16, 1, 8, 8), torch.randint(0, 10, (16,))


def gradients(net: nn.Module) -> list[Tensor]:
    found = [p.grad for p in net.parameters()]
    net.zero_grad()
    return found


def check(program: Callable[[], Any], expected: tuple[str, ...]) -> None:
    """Run by stock and accelerated; alike, and every expected operator was used."""
    stock = program()
    with switching.accelerated():
        hits = [switching.hits(op) for op in expected]
        ours = program()
        assert all(h.accelerated > 0 for h in hits), hits
    torch.testing.assert_close(_plain(ours), _plain(stock), check_stride=True)
    assert _C.flight()[0] == 0


def _plain(value: Any) -> Any:
    """What assert_close takes; texts and such are compared here."""
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, str):
        return [ord(c) for c in value]
    return value.detach() if isinstance(value, Tensor) else value
