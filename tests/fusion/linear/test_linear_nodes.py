"""Nodes of linear_act are called as torch's own, where a user reads their names."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reusing
import switching
import torch
from layers import OPS
from torch import Tensor, nn

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "none": nn.Identity,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def activated(name: str) -> Tensor:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 256), ACTIVATIONS[name]())
    return net(torch.randn(64, 256))


def twice_accelerated(function: Callable[[], str]) -> tuple[str, str]:
    stock = function()
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = function()
        assert hits.accelerated == 1, hits
    return stock, ours


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_errors_about_changes_in_place_name_torchs_node(name: str) -> None:
    def error() -> str:
        y = activated(name)
        result = y.square()
        y.add_(1)
        with pytest.raises(RuntimeError) as caught:
            result.sum().backward()
        return str(caught.value)

    stock, ours = twice_accelerated(error)
    assert ours == stock


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_tensors_print_as_stock(name: str) -> None:
    stock, ours = twice_accelerated(lambda: repr(activated(name)).partition("grad")[2])
    assert ours == stock


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_memory_reuse_knows_them_from_torchs_own(name: str) -> None:
    def gradient() -> Tensor:
        torch.manual_seed(0)
        first, second = nn.Linear(512, 512), nn.Linear(512, 4)
        net = nn.Sequential(first, ACTIVATIONS[name](), second)
        net(torch.randn(512, 512)).sum().backward()
        return first.weight.grad

    with switching.accelerated(*OPS):
        stock = gradient()
        with reusing.reused():
            assert torch.equal(gradient(), stock)
