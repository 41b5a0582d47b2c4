"""What optimizer steps tell of themselves: gradient times direction, of each group."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from math import isnan
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.adaptive_lr.tuner import weighted

SIZES = [(0,), (1,), (7,), (130,), (16383,), (2,), (3, 5001), (50000,)]
SGD = {
    "plain": {},
    "momentum": {"momentum": 0.9, "dampening": 0.1},
    "everything": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}
ADAM = {
    "Adam": (optim.Adam, {}),
    "Adam, everything": (optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "AdamW": (optim.AdamW, {"weight_decay": 0.1}),
}


def rows(op: str) -> list[str]:
    return next(
        [name for name, _, can_run, _ in found if can_run]
        for name, _, found in _C.operators()
        if name == op
    )


@pytest.fixture(params=rows("sgd_step"), autouse=True)
def row(request: pytest.FixtureRequest) -> Iterator[str]:
    ops = "sgd_step", "adam_step", "adamw_step"
    with ptac.enable():
        before = [_C.pin(op, request.param) for op in ops]
        yield request.param
        for op, pinned in zip(ops, before, strict=True):
            _C.pin(op, pinned)


def optimizer_after_steps(
    cls: type, n_steps: int, dtype: torch.dtype, **options: Any
) -> Any:
    """Its groups' gradients are those of the coming step."""
    generator = torch.Generator().manual_seed(0)
    params = [
        nn.Parameter(torch.randn(s, generator=generator, dtype=dtype)) for s in SIZES
    ]
    optimizer = cls(params, lr=0.01, **options)
    for i in range(n_steps + 1):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator, dtype=dtype)
        if i < n_steps:
            optimizer.step()
    return optimizer


def step(optimizer: Any, sums: list[float] | None, multiplier: float = 1.0) -> None:
    group = optimizer.param_groups[0]
    kind = "sgd" if isinstance(optimizer, optim.SGD) else "adam"
    assert _C.optimizer_group(kind, optimizer.state, group, multiplier, sums) == 1


def direction(optimizer: Any, p: Tensor) -> Tensor:
    """By Adam's paper, in float64, from the state before the step."""
    group, state = optimizer.param_groups[0], optimizer.state[p]
    (beta1, beta2), count = group["betas"], float(state["step"]) + 1
    g = p.grad.double()
    if type(optimizer) is optim.Adam:
        g = g + group["weight_decay"] * p.detach().double()
    m = state["exp_avg"].double() * beta1 + g * (1 - beta1)
    v = state["exp_avg_sq"].double() * beta2 + g * g * (1 - beta2)
    if group["amsgrad"]:
        v = torch.maximum(v, state["max_exp_avg_sq"].double())
    root = (v / (1 - beta2**count)).sqrt() + group["eps"]
    return m / (1 - beta1**count) / root


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", SGD.values(), ids=SGD)
def test_squares_of_sgd(dtype: torch.dtype, options: dict[str, Any]) -> None:
    optimizer = optimizer_after_steps(optim.SGD, 2, dtype, **options)
    grads = [p.grad.double() for p in optimizer.param_groups[0]["params"]]
    sums = [7.0]
    step(optimizer, sums)
    expected = sum(float(g.square().sum()) for g in grads)
    assert sums == [7.0, pytest.approx(expected, rel=1e-12)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("cls", "options"), ADAM.values(), ids=ADAM)
@pytest.mark.parametrize("multiplier", [1.0, 1e-3])
def test_descent_of_adam(
    cls: type, dtype: torch.dtype, options: dict[str, Any], multiplier: float
) -> None:
    optimizer = optimizer_after_steps(cls, 2, dtype, **options)
    params = optimizer.param_groups[0]["params"]
    expected = sum(
        float((p.grad.double() * direction(optimizer, p)).sum()) for p in params
    )
    sums: list[float] = []
    step(optimizer, sums, multiplier)
    bound = 1e-5 if dtype is torch.float32 else 1e-11
    assert sums == [pytest.approx(expected, rel=bound)]


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_telling_changes_no_bit(cls: type) -> None:
    quiet = optimizer_after_steps(cls, 2, torch.float32)
    telling = copy.deepcopy(quiet)
    for p, q in zip(
        telling.param_groups[0]["params"],
        quiet.param_groups[0]["params"],
        strict=True,
    ):
        p.grad = q.grad.clone()
    step(quiet, None)
    step(telling, [])
    for p, q in zip(
        telling.param_groups[0]["params"],
        quiet.param_groups[0]["params"],
        strict=True,
    ):
        assert torch.equal(p, q)


@pytest.mark.parametrize("cls", [optim.SGD, optim.Adam])
def test_threads_change_no_bit(cls: type) -> None:
    before = torch.get_num_threads()
    found = []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            sums: list[float] = []
            step(optimizer_after_steps(cls, 2, torch.float32), sums)
            found += sums
    finally:
        torch.set_num_threads(before)
    assert len(found) == 3
    assert len(set(found)) == 1


def test_a_rate_of_zero_tells_nothing_of_adam() -> None:
    sums: list[float] = []
    step(optimizer_after_steps(optim.Adam, 1, torch.float32), sums, 0.0)
    assert len(sums) == 1
    assert isnan(sums[0])


def test_elements_beyond_a_parameter_count_nothing() -> None:
    """Without eps, lanes beyond the last element would divide zero by zero."""
    p = nn.Parameter(torch.ones(3))
    optimizer = optim.Adam([p], lr=0.1, eps=0.0)
    for _ in range(2):
        p.grad = torch.full((3,), 2.0)
        optimizer.step()
    sums: list[float] = []
    step(optimizer, sums)
    assert sums == [pytest.approx(6.0, rel=1e-5)]


def test_groups_without_gradients_tell_nothing() -> None:
    params = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    optimizer = optim.SGD([{"params": [p]} for p in params], lr=0.1)
    params[0].grad, params[2].grad = torch.full((2,), 3.0), torch.ones(2)
    sums: list[float] = []
    assert _C.optimizer_step("sgd", optimizer, 1.0, sums)
    assert sums == [18.0, 2.0]
    step(optimizer, sums)
    assert sums == [18.0, 2.0, 18.0]


@pytest.mark.parametrize("sums", [(), 0, "", {}])
def test_sums_are_a_list(sums: Any) -> None:
    optimizer = optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(TypeError, match="a list or None"):
        _C.optimizer_step("sgd", optimizer, 1.0, sums)
    with pytest.raises(TypeError, match="a list or None"):
        _C.optimizer_group("sgd", {}, optimizer.param_groups[0], 1.0, sums)


def test_sums_count_by_their_weights() -> None:
    assert weighted(3.0, [1.0, 2.0], [4.0, 8.0], [5.0, 7.0]) == (3.0, 19.0, 76.0)
    assert weighted(3.0, [], [], []) == (3.0, 0.0, 0.0)
    for lists in (
        ([1.0, 2.0], [4.0, 8.0], [5.0]),
        ([1.0], [4.0, 8.0], [5.0, 7.0]),
        ([1.0], [4.0], [float("inf")]),
        ([float("nan")], [4.0], [5.0]),
        ([1.0], [1e308], [1e308]),
    ):
        assert weighted(3.0, *lists) is None
    assert weighted(float("inf"), [1.0], [1.0], [1.0]) is None
