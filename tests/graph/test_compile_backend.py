"""``torch.compile(model, backend="ptac")``: graphs of AOTAutograd's run by plans."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.graph import planned
from pai_torchacc.graph.compile_backend import ptac as backend


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    planned.everything.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def n_planned() -> int:
    """Calls of compiled graphs that went by plans."""
    return sum(one.counts()["planned_calls"] for one in planned.everything)


class Net(nn.Module):
    """Convolution, norm, a tied weight, and a branch of Python's."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.linear, self.tied = nn.Linear(8, 8), nn.Linear(8, 8)
        self.tied.weight = self.linear.weight

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.conv(x)))
        return self.tied(F.gelu(self.linear(x.mean((2, 3)))))


def alike(a: nn.Module, b: nn.Module) -> None:
    for one, other in zip(
        a.state_dict().values(), b.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for one, other in zip(a.parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("fused", [True, False])
def test_inference(fused: bool) -> None:
    if fused:
        ptac.enable()
    net = Net().eval()
    compiled = torch.compile(net, backend=backend)
    with torch.no_grad():
        for n in (2, 2, 2, 5, 5, 5):
            x = torch.randn(n, 3, 6, 6)
            torch.testing.assert_close(compiled(x), net(x), rtol=1e-4, atol=1e-5)
    assert n_planned() >= 2


@pytest.mark.parametrize("fused", [True, False])
def test_training(fused: bool) -> None:
    if fused:
        ptac.enable()
    net = Net()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, backend=backend)
    for _ in range(5):
        x = torch.randn(4, 3, 6, 6)
        for model in (compiled, twin):
            model.zero_grad()
            model(x).pow(2).sum().backward()
        alike(net, twin)
    assert n_planned() >= 4


def test_what_is_written_and_what_is_drawn() -> None:
    def function(x: Tensor, total: Tensor) -> Tensor:
        total.add_(x.sum(0))
        return F.dropout(x * 2, 0.5) + total

    compiled = torch.compile(function, backend=backend)
    totals = torch.zeros(4), torch.zeros(4)
    for seed in range(4):
        x, made = torch.randn(3, 4), []
        for call, total in zip((compiled, function), totals, strict=True):
            torch.manual_seed(seed)
            made.append(call(x, total))
        torch.testing.assert_close(*made)
        torch.testing.assert_close(*totals)
    assert n_planned() >= 2


def test_views_of_arguments_come_back_as_such() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.t(), x.exp()

    compiled = torch.compile(function, backend=backend)
    for _ in range(3):
        x = torch.randn(3, 4)
        turned, _ = compiled(x)
        turned.zero_()
        assert not x.any()


def test_arguments_that_overlap() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return (a.t() @ b).exp() + b.sum()

    compiled = torch.compile(function, backend=backend)
    whole = torch.randn(8, 4)
    pairs: list[Callable[[], tuple[Tensor, Tensor]]] = [
        lambda: (whole[:4], whole[:4]),
        lambda: (whole[:4], whole[2:6]),
        lambda: (torch.randn(4, 4), torch.randn(4, 4)),
    ]
    for make in pairs * 3:
        a, b = make()
        torch.testing.assert_close(compiled(a, b), function(a, b))
    assert n_planned() >= 3


def test_a_number_that_is_read_breaks_the_graph() -> None:
    def function(x: Tensor) -> Tensor:
        y = x.exp()
        return y * 2 if y.sum().item() > 4 else y + 1

    compiled = torch.compile(function, backend=backend)
    for scale in (-5.0, 1.0, -5.0, 1.0):
        x = torch.full((4,), scale)
        torch.testing.assert_close(compiled(x), function(x))
    assert n_planned() >= 1


def test_switched_off_graphs_run_by_operators() -> None:
    net = Net().eval()
    compiled = torch.compile(net, backend=backend)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        for _ in range(3):
            compiled(x)
        before = n_planned()
        assert before >= 1
        ptac.disable()
        torch.testing.assert_close(compiled(x), net(x))
    assert n_planned() == before


def test_the_backend_has_a_name() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="ptac")
    assert found.value == "pai_torchacc.graph.compile_backend:ptac"
    compiled: Any = torch.compile(nn.Linear(4, 3).eval(), backend="ptac")
    with torch.no_grad():
        for _ in range(3):
            assert compiled(torch.ones(2, 4)).shape == (2, 3)
    assert n_planned() >= 1
