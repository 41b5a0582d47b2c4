"""nn.LSTM and nn.GRU in programs: what stock has to do, hooks, threads, switching."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from recurring import CLASSES, NAMES, OPS, each, outputs, trained
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C


class Sub(Tensor):
    """A class of a program's own."""


def module_of(name: str, **options: Any) -> nn.RNNBase:
    torch.manual_seed(3)
    return CLASSES[name](5, 9, **options)


def numbers(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


X = numbers(4, 6, 5)


def autocasting(name: str) -> Any:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return module_of(name)(X)[0]


def mapped(name: str) -> Any:
    module = module_of(name).requires_grad_(False)
    return torch.func.vmap(lambda x: module(x)[0])(numbers(3, 4, 2, 5))


def functional(name: str) -> Any:
    module = module_of(name).requires_grad_(False)
    return torch.func.grad(lambda x: module(x)[0].sum())(X)


def profiled(name: str) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return module_of(name)(X)[0]


def hooked(name: str) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        module = module_of(name)
        return torch.autograd.grad(module(X)[0].sum(), module.weight_hh_l0)


def subclass(name: str) -> Any:
    return module_of(name)(X.as_subclass(Sub))[0].as_subclass(Tensor)


FORWARDED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "double": ("dtype", lambda n: module_of(n).double()(X.double())[0]),
    "bfloat16": ("dtype", lambda n: module_of(n).bfloat16()(X.bfloat16())[0]),
    "no rows": ("empty", lambda n: module_of(n)(X[:, :0])[0]),
    "gaps": ("layout", lambda n: module_of(n)(X.repeat(1, 1, 2)[..., ::2])[0]),
    "a subclass": ("tensor subclass", subclass),
    "autocast": ("mode or transform active", autocasting),
    "vmap": ("tensor subclass", mapped),
    "functorch": ("tensor subclass", functional),
    "profiler": ("profiler", profiled),
    "hooks": ("hooks", hooked),
}


@pytest.mark.parametrize("what", FORWARDED)
@each
def test_what_stock_does(name: str, what: str) -> None:
    reason, run = FORWARDED[what]
    stock = contract.said(lambda: run(name))
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        contract.exactly(contract.said(lambda: run(name)), stock)
        assert not hits.accelerated
        assert hits.forwarded == {reason: 1}


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
    function, params = getattr(torch._VF, name), module._flat_weights
    zeros = torch.zeros(1, 6, 9)
    hx = (zeros, zeros) if name == "lstm" else zeros
    rest = (params, True, 1, 0.0, False, False, False)
    calls: list[Callable[[], Any]] = [
        lambda: function(X),
        lambda: function(X, hx, *rest[:-1]),
        lambda: function(X, hx, params[:3], *rest[1:]),
        lambda: function(X.tolist(), hx, *rest),
        lambda: function(X, hx, params, True, 1, "0.5", True, False, False),
        lambda: module(torch.zeros(4, 6, 7)),
    ]
    stock = [contract.said(call) for call in calls]
    assert all(isinstance(text, str) for text in stock)
    with switching.accelerated(*OPS):
        function = getattr(torch._VF, name)
        assert [contract.said(call) for call in calls] == stock


@each
def test_by_keywords(name: str) -> None:
    module = module_of(name)
    zeros = torch.zeros(1, 6, 9)
    options = {
        "params": module._flat_weights, "has_biases": True, "num_layers": 1,
        "dropout": 0.0, "train": True, "bidirectional": False, "batch_first": False,
        "hx": (zeros, zeros) if name == "lstm" else zeros,
    }  # fmt: skip
    stock = getattr(torch._VF, name)(X, **options)
    with switching.accelerated(*OPS):
        contract.exactly(
            getattr(torch._VF, name)(X, **options)[0].detach(), stock[0].detach()
        )


@each
def test_rows_that_break(name: str) -> None:
    module = module_of(name)

    def run() -> list[Tensor]:
        found = [*trained(module, X.clone().requires_grad_()).values()]
        with torch.no_grad():
            return [*found, *outputs(module(X)).values()]

    stock = run()
    try:
        for op in (name, f"{name}_backward"):
            with switching.accelerated(*OPS):
                hits = switching.hits(op)
                internals.inject_failure(op)
                torch.testing.assert_close(run(), stock)
                assert hits.failed == 1
            internals.reset_quarantine()
    finally:
        internals.reset_quarantine()


@each
def test_shadow_checks(name: str) -> None:
    module = module_of(name, num_layers=2, bidirectional=True)

    def run() -> list[Tensor]:
        found = [*trained(module, X.clone().requires_grad_()).values()]
        with torch.no_grad():
            return [*found, *outputs(module(X)).values()]

    stock = run()
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        torch.testing.assert_close(run(), stock)
        assert [h.accelerated for h in hits] == [8, 4]
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    module = module_of(name)
    parameters = list(module.parameters())
    stock = torch.autograd.grad(module(X)[0].sum(), parameters)
    with switching.accelerated(*OPS):
        y = module(X)[0].sum()
        kept = getattr(torch._VF, name)
    assert name not in vars(torch._VF)
    hits = [switching.hits(op) for op in OPS]
    torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)
    zeros = torch.zeros(1, 6, 9)
    hx = (zeros, zeros) if name == "lstm" else zeros
    again = kept(X, hx, module._flat_weights, True, 1, 0.0, True, False, False)
    contract.exactly(again[0].detach(), module(X)[0].detach())
    assert not any(h.accelerated for h in hits)
    y = module(X)[0].sum()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)


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
    threads = torch.get_num_threads()
    found = []
    try:
        with switching.accelerated(name):
            for n in (1, 2):
                torch.set_num_threads(n)
                with torch.no_grad():
                    found.append([*outputs(module(x)).values()])
    finally:
        torch.set_num_threads(threads)
    contract.exactly(*found)


def test_switching_while_threads_train() -> None:
    modules = {name: module_of(name) for name in NAMES}
    stock = {
        name: [*trained(module, X.clone().requires_grad_()).values()]
        for name, module in modules.items()
    }
    trouble: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(30):
                for name, module in modules.items():
                    found = trained(module, X.clone().requires_grad_())
                    torch.testing.assert_close([*found.values()], stock[name])
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=train) for _ in range(2)]
    with switching.pins(OPS):
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            ptac.enable(include=NAMES)
            ptac.disable()
    assert not trouble
