"""Errors of the user's program: no frames of what stands in for stock's functions."""

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pai_torchacc as ptac


class Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")


def closure() -> float:
    raise KeyError("mine")


def sparse_step() -> None:
    layer = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(layer.parameters())
    layer.weight.grad = torch.ones(3, 3).to_sparse()
    optimizer.step()


def twice() -> None:
    loss = nn.Linear(3, 3)(torch.ones(2, 3)).square().sum()
    loss.backward()
    loss.backward()


def step(cls: type) -> Callable[[], Any]:
    return lambda: cls(nn.Linear(3, 3).parameters(), lr=0.1).step(closure)


@ptac.enable("memory_pool")
def decorated() -> None:
    raise KeyError("mine")


@ptac.enable("memory_pool")
def generator() -> Iterator[int]:
    yield 1
    raise KeyError("mine")


@ptac.enable("memory_pool")
async def coroutine() -> None:
    raise KeyError("mine")


X = torch.ones(4, 5)
CASES: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(6, 3)(X),
    "sequential": lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU())(X),
    "module in sequential": lambda: nn.Sequential(nn.ReLU(), Failing())(X),
    "convolution": lambda: nn.Conv2d(3, 8, 3)(torch.ones(1, 4, 8, 8)),
    "cross-entropy": lambda: F.cross_entropy(X, torch.tensor([1, 2, 9, 1])),
    "closure of SGD": step(torch.optim.SGD),
    "closure of Adam": step(torch.optim.Adam),
    "sparse gradient": sparse_step,
    "backward twice": twice,
    "decorated function": decorated,
    "decorated generator": lambda: list(generator()),
    "decorated coroutine": lambda: coroutine().send(None),
    "no parameters": lambda: torch.optim.SGD([], lr=1),
}


def places_of(case: str) -> list[str]:
    """The file and the module of each frame."""
    with pytest.raises(Exception) as caught:
        CASES[case]()
    return [
        f"{frame.f_code.co_filename} {frame.f_globals['__name__']}"
        for frame, _ in traceback.walk_tb(caught.value.__traceback__)
    ]


@pytest.mark.parametrize("case", CASES)
def test_no_frame_of_ours(case: str, monkeypatch) -> None:
    with ptac.enable("operator_fusion", "adaptive_lr", numerics="fast"):
        assert not [name for name in places_of(case) if "pai_torchacc" in name]
        monkeypatch.setenv("PTAC_TRACEBACK", "full")
        full = places_of(case)
    by_c = ("convolution", "linear", "sequential", "module in sequential")
    if case not in by_c:  # which have no stand-in in Python
        assert [name for name in full if "pai_torchacc" in name]
