"""Good rates stay good: beside stock, where the benchmark's problems do not look."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch import Tensor, nn, optim

import pai_torchacc as ptac

pytestmark = pytest.mark.long

Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


def diabetes() -> Data:
    """Standardized, [442, 10] and [442, 1]."""
    loaded = load_diabetes()
    x, y = (torch.tensor(part).float() for part in (loaded.data, loaded.target))
    return (x - x.mean(0)) / x.std(0), ((y - y.mean()) / y.std())[:, None]


def waves() -> Data:
    """What a line cannot fit, with noise: [512, 6] and [512, 1]."""
    x = torch.randn(512, 6)
    y = torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + 0.1 * torch.randn(512, 1)
    return x, y


def losses(
    data: Callable[[], Data],
    make: Callable[[Any], Any],
    n_steps: int,
    batch: int | None = None,
    loss: Loss = F.mse_loss,
    hidden: int = 0,
) -> list[float]:
    """Of all data, after each step."""
    torch.manual_seed(0)
    x, y = data()
    net: nn.Module = nn.Linear(x.shape[1], hidden or 1)
    if hidden:
        net = nn.Sequential(net, nn.Tanh(), nn.Linear(hidden, 1))
    optimizer, found = make(net.parameters()), []
    for _ in range(n_steps):
        part = torch.randint(len(x), (batch,)) if batch else slice(None)
        optimizer.zero_grad()
        loss(net(x[part]), y[part]).backward()
        optimizer.step()
        with torch.no_grad():
            found.append(loss(net(x), y).item())
    return found


def both(
    data: Callable[[], Data], make: Callable[[Any], Any], n_steps: int, **options: Any
) -> tuple[list[float], list[float]]:
    """By stock and by adaptive rates, which went by all losses."""
    stock, made = losses(data, make, n_steps, **options), []

    def kept(params: Any) -> Any:
        made.append(make(params))
        return made[0]

    with ptac.enable_adaptive_lr():
        ours = losses(data, kept, n_steps, **options)
        found = ptac.adaptive_lr_report(made[0])
    assert (found.mode, found.steps) == ("loss", n_steps)
    return stock, ours


def test_what_has_converged_is_left_at_its_minimum() -> None:
    stock, ours = both(diabetes, lambda p: optim.SGD(p, lr=0.1), 800)
    assert max(b / a for a, b in zip(stock[200:], ours[200:], strict=True)) < 1.05


def test_momentum_that_looks_far_back() -> None:
    stock, ours = both(
        diabetes, lambda p: optim.SGD(p, lr=0.003, momentum=0.99), 600, batch=32
    )
    assert math.fsum(ours[-50:]) <= 1.1 * math.fsum(stock[-50:])


@pytest.mark.parametrize("loss", [F.l1_loss, F.mse_loss])
@pytest.mark.parametrize(("cls", "good"), [(optim.RMSprop, 0.01), (optim.Adagrad, 0.1)])
def test_directions_that_are_not_averaged(cls: type, good: float, loss: Loss) -> None:
    """A good rate and one that is a tenth of it."""
    options: Any = {"batch": 128, "loss": loss, "hidden": 32}
    stock, ours = both(waves, lambda p: cls(p, lr=good), 300, **options)
    assert math.fsum(ours[-50:]) <= 1.1 * math.fsum(stock[-50:])
    stock, ours = both(waves, lambda p: cls(p, lr=good / 10), 300, **options)
    assert ours[-1] < 0.5 * stock[-1]
