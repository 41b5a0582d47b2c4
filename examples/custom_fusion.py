"""A fusion of one's own: ``ptac.fusion.register``.

A layer and an activation that this package does not know become one function, wherever
they follow each other in nn.Sequential. Registration checks its numbers and gradients.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import pai_torchacc as ptac


class SquaredReLU(nn.Module):
    """The square of a ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return torch.relu(x).square()


def fused(linear: nn.Linear, act: SquaredReLU, x: Tensor) -> Tensor:
    """Product, bias and ReLU in one call; act has nothing that is needed."""
    y = ptac.ops.linear_act(x, linear.weight, linear.bias, "relu")
    return y * y


def sample() -> tuple[tuple[nn.Module, nn.Module], Tensor]:
    """What the function is checked on."""
    return (nn.Linear(48, 64), SquaredReLU()), torch.randn(16, 48)


if __name__ == "__main__":
    import pai_torchacc.ops

    ptac.enable()
    print(ptac.fusion.register((nn.Linear, SquaredReLU), fused, sample))
    net = nn.Sequential(nn.Linear(256, 512), SquaredReLU(), nn.Linear(512, 10))
    net(torch.randn(32, 256)).sum().backward()
    print(ptac.report())
