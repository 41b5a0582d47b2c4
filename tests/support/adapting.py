"""Small trainings whose learning rates adapt, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

import pai_torchacc as ptac

report = ptac.adaptive_lr_report


Loss = Callable[[Tensor, Tensor], Tensor]


def data() -> tuple[Tensor, Tensor]:
    """Three clusters [192, 8] and their numbers."""
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(192) % 3
    centers = torch.randn(3, 8, generator=generator)
    return centers[y] + 0.7 * torch.randn(192, 8, generator=generator), y


def network(cls: type = optim.SGD, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    return net, cls(net.parameters(), **options)


def train(
    net: nn.Module,
    optimizer: Any,
    n_steps: int,
    loss: Loss = F.cross_entropy,
    after: Callable[[], Any] | None = None,
) -> list[float]:
    x, y = data()
    losses = []
    for i in range(n_steps):
        part = slice(i % 6 * 32, i % 6 * 32 + 32)
        optimizer.zero_grad()
        value = loss(net(x[part]), y[part])
        value.backward()
        optimizer.step()
        losses.append(value.item())
        if after:
            after()
    return losses


def closure_of(net: nn.Module, optimizer: Any) -> Callable[[], Tensor]:
    """A backward pass over all data."""
    x, y = data()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return closure


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


def assert_same(ours: list[Tensor], stock: list[Tensor]) -> None:
    for a, b in zip(ours, stock, strict=True):
        assert torch.equal(a, b)


def losses_of(optimizer: Any) -> list[float | None]:
    return [m.loss for m in report(optimizer).history]


def multipliers_of(optimizer: Any) -> list[float]:
    return [m.multiplier for m in report(optimizer).history]


def linear(lr: float = 1e-3, **options: Any) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    net = nn.Linear(8, 3)
    return net, optim.SGD(net.parameters(), lr=lr, **options)


def backward(net: nn.Module, times: float = 1.0) -> float:
    x, y = data()
    loss = times * F.cross_entropy(net(x), y)
    loss.backward()
    return loss.item()
