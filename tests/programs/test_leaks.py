"""Calls and switching leave no memory behind: flat RSS, flat reference counts."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from layers import linear
from leaking import assert_flat
from torch import nn

import pai_torchacc as ptac

pytestmark = pytest.mark.long

CALLS = 10_000
CYCLES = 1_000


IMAGES = torch.randn(1, 4, 8, 8)
ROWS = torch.randn(8, 12)
TARGET = torch.arange(8) % 5


def training(cls: type) -> Callable[[], None]:
    net = nn.Sequential(
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 5)
    )
    opt = cls(net.parameters(), lr=1e-4)
    x = torch.randn(8, 4, 8, 8)

    def step() -> None:
        opt.zero_grad()
        F.cross_entropy(net(x), TARGET).backward()
        opt.step()

    return step


def with_gradient(function: Callable[..., Any], *sizes: int) -> Callable[[], None]:
    x = torch.randn(*sizes, requires_grad=True)

    def call() -> None:
        torch.autograd.grad(function(x).sum(), x)

    return call


def wrong() -> None:
    for bad in (lambda: F.max_pool2d(IMAGES, 0), lambda: linear(ROWS, IMAGES)):
        try:
            bad()
        except RuntimeError:
            pass
        else:
            raise AssertionError


# By name: the work, and the operator that it uses each time.
WORK: dict[str, tuple[Callable[[], Any], str]] = {
    "pools": (with_gradient(lambda x: F.max_pool2d(x, 2), 1, 4, 8, 8), "max_pool2d"),
    "averages": (with_gradient(lambda x: F.avg_pool2d(x, 2), 1, 4, 8, 8), "avg_pool2d"),
    "log_softmax": (with_gradient(lambda x: x.log_softmax(1), 8, 12), "log_softmax"),
    "losses": (
        with_gradient(lambda x: F.cross_entropy(x, TARGET), 8, 12),
        "cross_entropy",
    ),
    "layers": (
        with_gradient(nn.Sequential(nn.Linear(40, 30), nn.GELU()), 80, 40),
        "linear_act",
    ),
    "sgd": (training(torch.optim.SGD), "sgd_step"),
    "adam": (training(torch.optim.Adam), "adam_step"),
    "forwarded": (lambda: F.max_pool2d(IMAGES.half(), 2), ""),
    "errors": (wrong, ""),
    "reports": (lambda: (ptac.report("json"), ptac.status()), ""),
}


@pytest.mark.parametrize("name", WORK)
def test_calls(name: str) -> None:
    work, op = WORK[name]
    times = CALLS // 10 if name == "reports" else CALLS
    with switching.accelerated():
        hits = switching.hits(op) if op else None
        assert_flat(work, times)
        if hits:
            assert hits.accelerated >= times


def test_cycles() -> None:
    step = training(torch.optim.SGD)

    def cycle() -> None:
        with ptac.enable(exclude=["avg_pool2d"]):
            step()

    assert_flat(cycle, CYCLES)
    assert ptac.status()["operator_fusion"]["active"] is False


def counted() -> list[Any]:
    """Objects that switching and calls touch."""
    return [
        torch.Tensor,
        nn.Parameter,
        torch.optim.SGD,
        nn.Linear,
        nn.ReLU,
        vars(nn.Sequential)["forward"],
        vars(torch.optim.SGD)["step"],
        vars(nn.Linear)["forward"],
        torch._C._nn.cross_entropy_loss,
    ]


def test_reference_counts() -> None:
    step = training(torch.optim.SGD)
    x, w = torch.randn(40, 30), torch.randn(20, 30)

    def work() -> None:
        step()
        linear(x, w)
        F.cross_entropy(x, torch.zeros(40, dtype=torch.int64))

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(o) for o in (*counted(), x, w, None)][:-1]

    with switching.accelerated():
        work()
        before = counts()
        for _ in range(200):
            work()
        assert counts() == before
    before = counts()
    for _ in range(50):
        with ptac.enable():
            work()
    assert counts() == before


def test_gradients_die_with_their_graph() -> None:
    with switching.accelerated():
        net = nn.Sequential(nn.Linear(40, 30), nn.ReLU())
        y = net(torch.randn(80, 40))
        loss = F.cross_entropy(y, torch.zeros(80, dtype=torch.int64))
        node = loss.grad_fn
        gc.collect()
        before = sys.getrefcount(net[0].weight)
        del y, loss, node
        gc.collect()
        assert sys.getrefcount(net[0].weight) <= before
        tensors = [o for o in gc.get_objects() if type(o) is torch.Tensor]
        shapes = [tuple(t.shape) for t in tensors]
        assert (80, 30) not in shapes
