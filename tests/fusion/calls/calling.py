"""Modules to call, the switch by which they are called in C, and who looks on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

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


class Functions(TorchFunctionMode):
    """Notes torch's functions."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    """Notes operators of aten."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def hold_while_toggled(is_right: Callable[[], bool], on: Callable[[], Any]) -> bool:
    """Whether all calls of two threads were right while a switch went on and off."""
    found: list[bool] = []
    stop = threading.Event()

    def work() -> None:
        with torch.no_grad():
            while not stop.is_set():
                found.append(is_right())

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        with on():
            found.append(is_right())
    stop.set()
    for thread in threads:
        thread.join()
    return len(found) > 60 and all(found)
