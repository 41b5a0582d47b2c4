"""torch's own list of optimizers, their options and their errors, off against on."""

from __future__ import annotations

import re
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.testing._internal.common_optimizers import OptimizerErrorEnum, optim_db

OPERATOR = {
    SGD: "sgd_step",
    Adam: "adam_step",
    AdamW: "adamw_step",
    Adadelta: "adadelta_step",
    RMSprop: "rmsprop_step",
    Adagrad: "adagrad_step",
    NAdam: "nadam_step",
}


def database_cases() -> list[Any]:
    """Every optimizer of torch, its listed inputs, its implementations."""
    cases = []
    for info in optim_db:
        for given in info.optim_inputs_func(device="cpu"):
            for flag in ("plain", *info.supported_impls):
                if flag in ("capturable", "differentiable"):
                    continue
                name = f"{info.name}-{flag}-{given.desc}".replace(" ", "_")
                cases.append(pytest.param(info, given, flag, id=name))
    return cases


def database_run(info: Any, given: Any, flag: str) -> Any:
    torch.manual_seed(0)
    kwargs = dict(given.kwargs)
    if flag != "plain":
        kwargs[flag] = True
    rows = [torch.randn(10, 5), torch.randn(3, 3)]
    if info.only_supports_sparse_grads:
        rows = rows[:1]
    weights = [nn.Parameter(r) for r in rows]
    optimizer = info.optim_cls(weights, **kwargs)
    x = torch.randn(5)
    shots = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (weights[0] @ x).pow(2).sum() + sum(w.sum() for w in weights)
        loss.backward()
        if info.only_supports_sparse_grads:
            for w in weights:
                w.grad = w.grad.to_sparse()
        return loss

    for _ in range(3):
        if info.step_requires_closure:
            shots.append(optimizer.step(closure).detach())
        else:
            shots.append(closure().detach())
            optimizer.step()
    return shots, weights, optimizer.state_dict()["state"]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("info", "given", "flag"), database_cases())
def test_database(info: Any, given: Any, flag: str) -> None:
    try:
        stock = database_run(info, given, flag)
    except IndexError as error:  # LBFGS looks for a maximum where there is none
        again = pytest.raises(IndexError, match=re.escape(str(error)))
        with switching.accelerated(*OPERATOR.values()), again:
            database_run(info, given, flag)
        return
    with switching.accelerated(*OPERATOR.values()):
        op = OPERATOR.get(info.optim_cls)
        hits = switching.hits(op) if op else None
        ours = database_run(info, given, flag)
        takes = flag in ("plain", "foreach", "fused") and not isinstance(
            given.kwargs.get("lr"), Tensor
        )
        takes &= not any(isinstance(b, Tensor) for b in given.kwargs.get("betas", ()))
        if hits:
            expected = 3 if takes and not given.kwargs.get("capturable") else 0
            assert hits.accelerated == expected, hits
    contract.exactly(ours, stock)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("info", optim_db, ids=lambda i: i.name)
def test_database_of_errors(info: Any) -> None:
    """Wrong arguments are refused with torch's own words."""

    def words(given: Any) -> str:
        with pytest.raises(given.error_type, match=given.error_regex) as caught:
            asked = given.optimizer_error_input
            opt = info.optim_cls(asked.params, **asked.kwargs)
            if given.error_on is OptimizerErrorEnum.STEP_ERROR:
                opt.step()
        return str(caught.value)

    for given in info.optim_error_inputs_func(device="cpu", dtype=torch.float32):
        stock = words(given)
        with switching.accelerated(*OPERATOR.values()):
            assert words(given) == stock
