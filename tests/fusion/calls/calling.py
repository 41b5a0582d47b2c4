"""Modules to call, and the switch by which they are called in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

STOCK = vars(nn.Module)["__call__"]
IMAGES, ROWS, SIGNALS = (2, 4, 7, 7), (3, 4), (2, 4, 9)


def on() -> Any:
    """Operator fusion of what no test calls: only the way to torch is ours."""
    return ptac.enable_operator_fusion(["cross_entropy"])


def n_leaves(call: Callable[[], Any]) -> int:
    """How many leaves a call goes by."""
    before = _C.leaves_called()
    call()
    return _C.leaves_called() - before


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float = 1.0, *, shift: float = 0.0) -> Tensor:
        return self.layer(x) * scale + shift


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(4, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.LayerNorm(12),
        Block12(),
        nn.Softmax(1),
    )


class Block12(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * 2.0
