"""Training steps, planned and eager side by side."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from planning import planned_of
from torch import Tensor, nn

import pai_torchacc as ptac

Step = Callable[..., Any]
Build = Callable[[nn.Module, torch.optim.Optimizer], Step]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 5))


def batches(n: int, *sizes: int, classes: int = 5) -> list[tuple[Tensor, Tensor]]:
    return [
        (torch.randn(sizes), torch.randint(0, classes, sizes[:1])) for _ in range(n)
    ]


def plain(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def flat(returned: list[Any]) -> list[Tensor]:
    return [
        tensor.detach()
        for one in returned
        for tensor in (one if isinstance(one, tuple) else (one,))
        if tensor is not None
    ]


def both(
    model: nn.Module,
    data: list[Any],
    build: Build = plain,
    make_optimizer: Callable[[Any], torch.optim.Optimizer] = sgd,
    eagerly: int = 2,
    on_refusal: Any = "raise",
) -> tuple[nn.Module, nn.Module]:
    """Train twins, one by plans from the third step on; they end alike."""
    twins = model, copy.deepcopy(model)
    returned, drawn = [], []
    for twin, is_planned in zip(twins, (False, True), strict=True):
        torch.manual_seed(7)
        step = build(twin, make_optimizer(twin.parameters()))
        if is_planned:
            step = ptac.optimize(step, on_refusal=on_refusal)
        returned.append(flat([step(*batch) for batch in data]))
        drawn.append(torch.rand(4))
        if is_planned:
            assert planned_of(step).counts()["planned_calls"] == len(data) - eagerly
    for ours, theirs in zip(*returned, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert torch.equal(*drawn)
    alike(*twins)
    return twins


def alike(a: nn.Module, b: nn.Module) -> None:
    for (name, one), other in zip(
        a.state_dict().items(), b.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4, msg=name)
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None and other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
            assert one.grad.stride() == other.grad.stride()


class Residual(nn.Module):
    """Convolutions, norms, a residual sum, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.other_norm = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        x = F.relu(x + self.other_norm(self.second(x)))
        return self.last(self.pool(x).mean((2, 3)))
