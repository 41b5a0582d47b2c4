"""Optimizer steps whose tensors share memory: stock's result, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adam, AdamW

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
}
CLASSES = pytest.mark.parametrize("cls", OPERATOR)


def numbers() -> Tensor:
    return torch.linspace(-1, 1, 12).reshape(3, 4)


def parameter() -> nn.Parameter:
    p = nn.Parameter(numbers())
    p.grad = numbers().flip(0)
    return p


@pytest.mark.parametrize("shared", ["parameter", "step counter", "two groups"])
@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group")
@CLASSES
def test_a_tensor_that_is_written_twice(cls: type, shared: str) -> None:
    """Stock updates it twice, one after the other."""

    def program() -> list[Any]:
        p, q = parameter(), parameter()
        opt = cls([p, p] if shared == "parameter" else [p, q], lr=0.1)
        if shared == "two groups":
            opt.add_param_group({"params": [parameter()], "lr": 0.2})
            opt.param_groups[1]["params"][0] = p
        for _ in range(3):
            opt.step()
            if shared == "step counter" and cls is not SGD:
                opt.state[q]["step"] = opt.state[p]["step"]
        return [p, q, opt.state[p]]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        if shared == "parameter":
            # A group that has its states to make is asked about twice.
            assert hits.forwarded.keys() == {"overlapping memory"}
    contract.exactly(ours, stock)


@CLASSES
@pytest.mark.parametrize("gradient_at", [0, 5, 15])
def test_a_gradient_that_lies_over_its_parameter(cls: type, gradient_at: int) -> None:
    def program() -> Any:
        memory = torch.linspace(0, 1, 30)
        p = memory[10:20].requires_grad_()
        p.grad = memory[gradient_at : gradient_at + 10].detach()
        try:
            cls([p], lr=0.1).step()
        except RuntimeError as error:
            return str(error)
        return memory.detach()

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        is_over = gradient_at != 0
        assert hits.forwarded.keys() == ({"overlapping memory"} if is_over else set())
    if isinstance(stock, str):
        assert ours == stock
    else:
        contract.exactly(ours, stock)


def own_parameter(opt: Any) -> list[Tensor]:
    return [p.detach() for group in opt.param_groups for p in group["params"]]


def own_state(opt: Any) -> list[Tensor]:
    return [next(s for s in opt.state[p].values() if s.dim()) for p in opt.state]


def others_state(opt: Any) -> list[Tensor]:
    return own_state(opt)[::-1]


def one_for_both(opt: Any) -> list[Tensor]:
    return [numbers()] * len(opt.state)


@pytest.mark.parametrize("n_groups", [1, 2])
@pytest.mark.parametrize(
    "source", [own_parameter, own_state, others_state, one_for_both]
)
@CLASSES
def test_gradients_that_a_step_writes(
    cls: type, source: Callable[[Any], list[Tensor]], n_groups: int
) -> None:
    """Stock reads them again after each operation; sharing them is nothing to it."""

    def program() -> list[Any]:
        extra = {"momentum": 0.9} if cls is SGD else {"weight_decay": 0.1}
        params = [parameter(), parameter()]
        split = [params] if n_groups == 1 else [params[:1], params[1:]]
        opt = cls([{"params": p} for p in split], lr=0.1, **extra)
        opt.step()
        for p, grad in zip(params, source(opt), strict=True):
            p.grad = grad
        opt.step()
        return [params, [opt.state[p] for p in params]]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        if source is one_for_both:
            assert (hits.accelerated, hits.forwarded) == (2 * n_groups, {})
        elif source is others_state and n_groups == 2:
            # Group by group there is nothing that the other one would see.
            assert hits.accelerated == 2 * n_groups
        else:
            forwarded = {"overlapping memory": n_groups}
            assert (hits.accelerated, hits.forwarded) == (n_groups, forwarded)
    contract.exactly(ours, stock)
