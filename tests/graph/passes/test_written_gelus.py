"""GELU that programs write out, as transformers' GPT-2 does, is run as one."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from planning import by_plan, close, steps
from torch import Tensor

import pai_torchacc as ptac

SCALE = math.sqrt(2 / math.pi)

Function = Callable[[Tensor], Tensor]


def _through_view(x: Tensor) -> Tensor:
    h = torch.addmm(torch.ones(6), x, torch.eye(6)).view(1, -1, 6)
    return 0.5 * h * (1.0 + torch.tanh(SCALE * (h + 0.044715 * torch.pow(h, 3.0))))


WRITTEN: dict[str, Function] = {
    "tanh": lambda x: (
        0.5 * x * (1 + torch.tanh(SCALE * (x + 0.044715 * torch.pow(x, 3.0))))
    ),
    "tanh of products": lambda x: (
        x * 0.5 * (1.0 + torch.tanh((x + x * x * x * 0.044715) * SCALE))
    ),
    "tanh, halved last": lambda x: (
        0.5 * (x * (torch.tanh(0.7978845608 * (0.044715 * x**3 + x)) + 1))
    ),
    "erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0))),
    "erf of product": lambda x: x * (0.5 * (1 + torch.erf(x * 0.7071067811865476))),
    "through a view": _through_view,
}


def _read_again(x: Tensor) -> Tensor:
    curve = torch.erf(x / math.sqrt(2.0))
    return x * 0.5 * (1.0 + curve) + curve


def _writes_between(x: Tensor) -> Tensor:
    y = x + 1
    half = 0.5 * y
    y.add_(1)
    return half * (1.0 + torch.erf(y / math.sqrt(2.0)))


OTHERS: dict[str, Function] = {
    "other scale": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "other cubic": lambda x: 0.5 * x * (1 + torch.tanh(SCALE * (x + 0.045 * x**3))),
    "other power": lambda x: 0.5 * x * (1 + torch.tanh(SCALE * (x + 0.044715 * x**2))),
    "not halved": lambda x: x * (1 + torch.erf(x / math.sqrt(2.0))),
    "less one": lambda x: x * 0.5 * (torch.erf(x / math.sqrt(2.0)) - 1),
    "of another": lambda x: (x + 1) * 0.5 * (1 + torch.erf(x / math.sqrt(2.0))),
    "alpha": lambda x: x * 0.5 * torch.add(torch.erf(x / math.sqrt(2.0)), 1.0, alpha=2),
    "read again": _read_again,
    "written between": _writes_between,
    "float64": lambda x: WRITTEN["erf"](x.double()),
}


def planned(function: Function, x: Tensor) -> tuple[list[str], Tensor]:
    """Its steps, and what a replay gives."""
    optimized = ptac.optimize(function, on_refusal="raise")
    with torch.no_grad():
        for _ in range(2):
            optimized(x)
    return steps(optimized), by_plan(optimized, lambda: optimized(x))


@pytest.mark.parametrize("name", WRITTEN)
def test_written_gelus_are_one(name: str) -> None:
    ptac.enable()
    x = 3 * torch.randn(9, 6)
    names, ours = planned(WRITTEN[name], x)
    assert "gelu" in names
    assert not {"aten::erf", "erf", "tanh", "tanh_"}.intersection(names)
    close(ours, WRITTEN[name](x))


@pytest.mark.parametrize("name", OTHERS)
def test_what_only_looks_like_gelu_stays(name: str) -> None:
    ptac.enable()
    x = 3 * torch.randn(9, 6)
    names, ours = planned(OTHERS[name], x)
    assert "gelu" not in names
    close(ours, OTHERS[name](x))


@pytest.mark.parametrize("name", WRITTEN)
def test_exact_numbers_are_the_programs(name: str) -> None:
    ptac.enable(numerics="exact")
    x = 3 * torch.randn(9, 6)
    names, ours = planned(WRITTEN[name], x)
    assert "gelu" not in names
    with ptac.disabled():
        assert torch.equal(ours, WRITTEN[name](x))
