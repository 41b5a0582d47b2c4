"""nn.LSTM and nn.GRU in programs: what stock has to do, hooks, threads, switching."""

from __future__ import annotations

import copy
from typing import Any

import contract
import pytest
import recurring
import switching
import torch
from recurring import (
    CLASSES,
    FORWARDED,
    NAMES,
    OPS,
    Call,
    Forwarded,
    Result,
    by_name,
    each,
    module_of,
    numbers,
    outputs,
    states_by,
    trained,
)
from torch import Tensor, nn

import pai_torchacc as ptac


class Sub(Tensor):
    """A class of a program's own."""


X = numbers(4, 6, 5)


def zeros_of(name: str) -> Any:
    return states_by(name, lambda: torch.zeros(1, 6, 9))


def y_of(module: nn.RNNBase, x: Tensor) -> Tensor:
    y: Tensor = module(x)[0]
    return y


def trained_and_not(module: nn.RNNBase) -> list[Tensor]:
    """Outputs and gradients of everything, and outputs without gradients."""
    found = [*trained(module, X.clone().requires_grad_()).values()]
    with torch.no_grad():
        return [*found, *outputs(module(X)).values()]


def mapped(module: nn.RNNBase, call: Call, _: Tensor) -> Any:
    module.requires_grad_(False)
    return torch.func.vmap(lambda x: call(module, x))(numbers(3, 4, 2, 5))


def profiled(module: nn.RNNBase, call: Call, x: Tensor) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return call(module, x)


def subclass(module: nn.RNNBase, call: Call, x: Tensor) -> Any:
    return call(module, x.as_subclass(Sub)).as_subclass(Tensor)


WAYS: Forwarded = FORWARDED | {
    "bfloat16": ("dtype", lambda m, call, x: call(m.bfloat16(), x.bfloat16())),
    "no rows": ("empty", lambda m, call, x: call(m, x[:, :0])),
    "gaps": ("layout", lambda m, call, x: call(m, x.repeat(1, 1, 2)[..., ::2])),
    "a subclass": ("tensor subclass", subclass),
    "vmap": ("tensor subclass", mapped),
    "profiler": ("profiler", profiled),
}


@pytest.mark.parametrize("what", WAYS)
@each
def test_what_stock_does(name: str, what: str) -> None:
    reason, way = WAYS[what]
    recurring.hold_forwarded(name, lambda: way(module_of(name), y_of, X), reason)


def test_projections_are_stocks() -> None:
    def run() -> Tensor:
        y: Tensor = module_of("lstm", proj_size=4)(X)[0]
        return y

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits("lstm")
        contract.exactly(run(), stock)
        assert hits.forwarded == {"argument": 1}


@each
def test_mistakes_get_torchs_own_errors(name: str) -> None:
    module = module_of(name)
    params, hx = module._flat_weights, zeros_of(name)
    rest = (params, True, 1, 0.0, False, False, False)
    calls = [
        by_name(name, X),
        by_name(name, X, hx, *rest[:-1]),
        by_name(name, X, hx, params[:3], *rest[1:]),
        by_name(name, X.tolist(), hx, *rest),
        by_name(name, X, hx, params, True, 1, "0.5", True, False, False),
        lambda: module(torch.zeros(4, 6, 7)),
    ]
    recurring.hold_errors(name, calls)


@each
def test_by_keywords(name: str) -> None:
    module = module_of(name)
    options = {
        "params": module._flat_weights, "has_biases": True, "num_layers": 1,
        "dropout": 0.0, "train": True, "bidirectional": False, "batch_first": False,
        "hx": zeros_of(name),
    }  # fmt: skip
    stock = getattr(torch._VF, name)(X, **options)
    with switching.accelerated(*OPS):
        contract.exactly(
            getattr(torch._VF, name)(X, **options)[0].detach(), stock[0].detach()
        )


@each
def test_rows_that_break(name: str) -> None:
    module = module_of(name)
    recurring.hold_broken_rows(name, lambda: trained_and_not(module))


@each
def test_shadow_checks(name: str) -> None:
    module = module_of(name, num_layers=2, bidirectional=True)
    recurring.hold_shadow_checks(name, lambda: trained_and_not(module), calls=[8, 4])


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    module = module_of(name)
    recurring.hold_switched_off(name, module, lambda: module(X)[0])
    with switching.accelerated(*OPS):
        kept = getattr(torch._VF, name)
    hits = [switching.hits(op) for op in OPS]
    weights = module._flat_weights
    again = kept(X, zeros_of(name), weights, True, 1, 0.0, True, False, False)
    contract.exactly(again[0].detach(), module(X)[0].detach())
    assert not any(h.accelerated for h in hits)


class Net(nn.Module):
    """What TorchScript sees of a module that others hold."""

    def __init__(self, rnn: nn.RNNBase):
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


@each
def test_copies_and_scripts(name: str) -> None:
    module = module_of(name)
    stock = module(X)[0].detach()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(copy.deepcopy(module)(X)[0].detach(), stock)
        assert hits.accelerated == 1
        torch.jit._state._clear_class_state()
        script = torch.jit.script(Net(module))
        assert f"aten::{name}" in str(script.inlined_graph)
        contract.exactly(script(X).detach(), stock)


def test_dynamo_sees_torchs_functions() -> None:
    program = """
import torch, switching
torch.manual_seed(0)
module = torch.nn.GRU(4, 5)
x = torch.randn(3, 2, 4)
seen = []
def backend(graph, inputs):
    seen.append(str(graph.graph))
    return graph.forward
def run():
    torch._dynamo.reset()
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        return torch.compile(module, backend=backend)(x)[0]
expected = run()
with switching.accelerated("gru"):
    assert torch.equal(run(), expected)
assert len(seen) == 2 and seen[0] == seen[1], seen
"""
    switching.python(program)


@each
def test_the_result_does_not_depend_on_threads(name: str) -> None:
    module, x = CLASSES[name](20, 64), torch.randn(10, 30, 20)
    recurring.hold_by_any_threads(name, lambda: outputs(module(x)))


def test_switching_while_threads_train() -> None:
    def train(module: nn.RNNBase) -> Result:
        return trained(module, X.clone().requires_grad_())

    def switch() -> None:
        ptac.enable(include=NAMES)
        ptac.disable()

    with switching.pins(OPS):
        recurring.hold_in_threads(train, 30, switch)
