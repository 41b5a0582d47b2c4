"""What optimizers' groups and states may become between steps, as stock takes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
    RMSprop: "rmsprop_step",
    Adagrad: "adagrad_step",
    NAdam: "nadam_step",
}
KEYS = [
    (cls, key)
    for cls in OPERATOR
    for key in cls([nn.Parameter(torch.ones(2))], lr=0.1).param_groups[0]
    if key not in ("params", "initial_accumulator_value")
]


def parameter() -> nn.Parameter:
    p = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
    p.grad = torch.linspace(1, 2, 12).reshape(3, 4)
    return p


@pytest.mark.parametrize("hooked", [False, True], ids=["short way", "long way"])
@pytest.mark.parametrize(("cls", "key"), KEYS)
def test_a_key_that_is_missing_is_torchs_own_error(
    cls: type, key: str, hooked: bool
) -> None:
    def program() -> Any:
        opt: Any = cls([parameter()], lr=0.1)
        opt.step()
        if hooked:
            opt.register_step_pre_hook(lambda *_: None)
        del opt.param_groups[0][key]
        try:
            opt.step()
        except KeyError as error:
            return "KeyError", str(error)
        return opt.param_groups[0]["params"], opt.state_dict()["state"]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert hits.accelerated >= 1
    contract.exactly(ours[1:], stock[1:])
    assert (ours[0] == "KeyError") is (stock[0] == "KeyError")


def mu_in_float64(opt: Any, state: dict[str, Any]) -> None:
    state["mu_product"] = state["mu_product"].double()


def mu_of_one(opt: Any, state: dict[str, Any]) -> None:
    state["mu_product"].fill_(1)
    opt.param_groups[0]["betas"] = (0.0, 0.9)


def no_mu(opt: Any, state: dict[str, Any]) -> None:
    del state["mu_product"]


def count_in_float64(opt: Any, state: dict[str, Any]) -> None:
    state["step"] = state["step"].double() + 2.0**24


def momentum_later(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["momentum"] = 0.5


def negative_momentum(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["momentum"] = -0.5


def centered_later(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["centered"] = True


def no_rate_left(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["lr_decay"] = -1.0


def huge_rate(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["lr"] = 1e39


def decay_as_tensor(opt: Any, state: dict[str, Any]) -> None:
    opt.param_groups[0]["weight_decay"] = torch.tensor(0.1)


EDITS = [
    (NAdam, mu_in_float64, 4),
    (NAdam, mu_of_one, 4),
    (NAdam, no_mu, 1),
    (NAdam, count_in_float64, 4),
    (NAdam, huge_rate, 1),
    (NAdam, decay_as_tensor, 1),
    (RMSprop, momentum_later, 1),
    (RMSprop, negative_momentum, 4),
    (RMSprop, centered_later, 1),
    (RMSprop, count_in_float64, 4),
    (RMSprop, huge_rate, 1),
    (Adagrad, no_rate_left, 3),
    (Adagrad, count_in_float64, 4),
    (Adagrad, huge_rate, 1),
]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(("cls", "edit", "served"), EDITS)
def test_edits_between_steps(
    cls: type, edit: Callable[..., None], served: int, foreach: bool
) -> None:
    """States that stock takes are served; the rest is left to it, errors and all."""

    def program() -> Any:
        p = parameter()
        opt: Any = cls([p], lr=0.1, foreach=foreach)
        opt.step()
        edit(opt, opt.state[p])
        errors = []
        for _ in range(3):
            try:
                opt.step()
            except (ArithmeticError, KeyError, RuntimeError) as error:
                errors.append(f"{type(error)} {error}")
        return errors, p.detach(), opt.state[p]

    stock = program()
    with switching.accelerated(OPERATOR[cls]):
        hits = switching.hits(OPERATOR[cls])
        ours = program()
        assert hits.accelerated == served, hits
    contract.exactly(ours, stock)


@pytest.mark.parametrize("cls", [RMSprop, Adagrad, NAdam])
def test_accelerated_in_a_copy_while_the_switch_toggles(cls: type) -> None:
    def program(switch: Callable[[int], Any]) -> Any:
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(50))
        opt: Any = cls([p], lr=0.01)
        for step in range(6):
            p.grad = torch.randn(50)
            with switch(step):
                opt.step()
            if step == 3:
                p, opt = copy.deepcopy((p, opt))
        return p.detach(), opt.state_dict()["state"]

    stock = program(lambda _: torch.enable_grad())
    op = OPERATOR[cls]
    with switching.accelerated(op):
        hits = switching.hits(op)
    ours = program(
        lambda i: switching.accelerated(op) if i % 2 else torch.enable_grad()
    )
    assert hits.accelerated == 3
    contract.exactly(ours, stock)


def odd_strides(size: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
    return torch.empty_strided(size, strides).normal_()


@pytest.mark.parametrize("way", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("decay", [0, 0.1])
@pytest.mark.parametrize(
    ("size", "strides"),
    [
        ((4, 1, 3), (3, 99, 1)),
        ((1, 6), (7, 1)),
        ((2, 3, 1, 1), (3, 1, 3, 3)),
        ((2, 3, 4, 1), (12, 1, 3, 3)),
        ((1, 1), (5, 9)),
    ],
)
def test_momentum_buffers_lie_as_stocks_do(
    size: tuple[int, ...], strides: tuple[int, ...], decay: float, way: str
) -> None:
    """Also in dimensions of size 1, whose strides say nothing."""

    def program() -> Any:
        torch.manual_seed(0)
        p = nn.Parameter(odd_strides(size, strides))
        p.grad = odd_strides(size, strides)
        asked = {} if way == "loop" else {way: True}
        opt = SGD([p], lr=0.1, momentum=0.9, weight_decay=decay, **asked)
        opt.step()
        buffer = opt.state[p]["momentum_buffer"]
        return p.detach(), buffer, torch.tensor(buffer.stride())

    stock = program()
    with switching.accelerated("sgd_step"):
        hits = switching.hits("sgd_step")
        ours = program()
        assert hits.accelerated == 1, hits
    contract.exactly(ours, stock)
