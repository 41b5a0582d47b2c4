"""nn.LSTM and nn.GRU on the CPU: numbers, gradients, and what stock has to do."""

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
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

import pai_torchacc as ptac
from pai_torchacc import _C

NAMES = ("lstm", "gru")
OPS = tuple(f"{name}{end}" for name in NAMES for end in ("", "_backward"))
CLASSES: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}

each = pytest.mark.parametrize("name", NAMES)
VECTORS = [row for row in switching.runnable_rows("lstm") if row != "scalar"]
"""Rows; where there are no vectors, the row "scalar" serves."""

rows = pytest.mark.parametrize("row", VECTORS or ["scalar"])

Result = dict[str, Tensor]


def outputs(found: Any) -> Result:
    """Y and the states by name."""
    y, states = found
    states = states if isinstance(states, tuple) else (states,)
    return {"y": y, **dict(zip("hc", states, strict=False))}


def trained(module: nn.RNNBase, x: Tensor, hx: Any = None) -> Result:
    """Outputs, and gradients of everything by all of them."""
    found = outputs(module(x) if hx is None else module(x, hx))
    loss = sum((t * t.cos()).sum() for t in found.values())
    states = hx if isinstance(hx, tuple) else (hx,)
    wanted = {"x": x} | {f"hx {i}": t for i, t in enumerate(states) if t is not None}
    wanted |= dict(module.named_parameters())
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return found | dict(zip(wanted, grads, strict=True))


VARIANTS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "small": ((5, 7, 9, 21), {}),
    "one row": ((6, 1, 12, 40), {}),
    "a few rows": ((4, 3, 5, 16), {"batch_first": True}),
    "batch first": ((3, 9, 16, 33), {"batch_first": True}),
    "no bias": ((4, 6, 8, 17), {"bias": False}),
    "both directions": ((4, 6, 8, 12), {"bidirectional": True}),
    "two layers": ((4, 5, 6, 20), {"num_layers": 2, "bidirectional": True}),
    "one step": ((1, 4, 6, 8), {}),
    "one unit": ((5, 4, 1, 1), {}),
    "long sums": ((2, 4, 600, 70), {}),
}


@pytest.mark.parametrize("what", VARIANTS)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    (n_steps, n_rows, n_in, n_hidden), options = VARIANTS[what]
    n_parts = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))

    def case(dtype: torch.dtype) -> Result:
        module = CLASSES[name](n_in, n_hidden, **options).to(dtype)
        turned = options.get("batch_first", False)
        leading = (n_rows, n_steps) if turned else (n_steps, n_rows)
        x = contract.draw(*leading, n_in, dtype=dtype).requires_grad_()
        hx = [
            contract.draw(n_parts, n_rows, n_hidden, dtype=dtype).requires_grad_()
            for _ in range(1 + (name == "lstm"))
        ]
        found = trained(module, x, tuple(hx) if name == "lstm" else hx[0])
        with torch.no_grad():
            plain = outputs(module(x))
        return found | {f"without gradient {k}": t for k, t in plain.items()}

    with switching.accelerated(*OPS, row=row):
        forward, backward = (
            switching.hits(f"{name}{end}") for end in ("", "_backward")
        )
        contract.hold(case)
        assert forward.accelerated == 2 * backward.accelerated > 0
        assert not forward.failed
        assert backward.accelerated % n_parts == 0
        assert not backward.forwarded


@each
def test_gradients_of_some(name: str) -> None:
    """Of one output alone, and for some inputs alone."""
    module, x = CLASSES[name](6, 10), torch.randn(5, 4, 6)

    def run() -> list[Tensor]:
        found = []
        for key in outputs(module(x)):
            x.requires_grad_()
            loss = outputs(module(x))[key].sum()
            found += torch.autograd.grad(loss, x, retain_graph=True)
            found += torch.autograd.grad(loss, module.weight_hh_l0)
        y = module(x.detach_())[0]
        found += torch.autograd.grad(y[-1].sum(), module.bias_hh_l0)
        frozen = copy.deepcopy(module).requires_grad_(False)
        x.requires_grad_()
        found += torch.autograd.grad(frozen(x)[0].sum(), x)
        x.detach_()
        return found

    stock = run()
    with switching.accelerated(*OPS):
        backward = switching.hits(f"{name}_backward")
        torch.testing.assert_close(run(), stock)
        assert backward.accelerated == 2 * len(outputs(module(x))) + 2


@each
def test_views_and_states_that_are_expanded(name: str) -> None:
    module = CLASSES[name](6, 10)
    x = torch.randn(4, 20, 9)[:, ::2, 2:8]
    h = torch.randn(1, 1, 10).expand(1, 10, 10)
    hx = (h, torch.randn(2, 10, 10)[1:]) if name == "lstm" else h

    def run() -> list[Tensor]:
        found = [*outputs(module(x, hx)).values()]
        loss = sum(t.sum() for t in found)
        found += torch.autograd.grad(loss, list(module.parameters()))
        found += outputs(module(x[:, 0], None)).values()  # without a batch
        return found

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 2


@each
def test_second_derivatives(name: str) -> None:
    module, x = CLASSES[name](3, 4), torch.randn(3, 2, 3, requires_grad=True)

    def run() -> list[Tensor]:
        y = module(x)[0]
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), [x, *module.parameters()])]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 1


@each
def test_gradients_to_be_differentiated_where_one_tensor_is_of_another(
    name: str,
) -> None:
    module, x = CLASSES[name](5, 9), torch.randn(4, 6, 5)

    def run() -> Tensor:
        _, states = module(x)
        y, _ = module(x, states)
        w = module.weight_hh_l0
        return torch.autograd.grad(y.pow(2).sum(), w, create_graph=True)[0]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@each
def test_weights_with_other_memory_before_backward(name: str) -> None:
    x = torch.randn(4, 6, 5, requires_grad=True)

    def run() -> Any:
        torch.manual_seed(3)
        module = CLASSES[name](5, 9)
        y, _ = module(x)
        module.weight_hh_l0.data = module.weight_hh_l0.data * 2
        module.weight_ih_l0.data = module.weight_ih_l0.data * 3
        return torch.autograd.grad(y.sum(), [x, *module.parameters()])

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    module = CLASSES[name](6, 20)
    x = torch.randn(5, 8, 6)
    for row, value in enumerate([float("nan"), float("inf"), -float("inf")]):
        x[2, row, 1] = value

    def run() -> Result:
        with torch.no_grad():
            return outputs(module(x))

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, equal_nan=True)


@each
def test_dropout_between_layers_draws_stocks_numbers(name: str) -> None:
    module, x = CLASSES[name](5, 9, 3, dropout=0.4), torch.randn(4, 6, 5)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        found = [*trained(module, x.requires_grad_()).values()]
        with torch.no_grad():
            found += outputs(module(x)).values()
            found += outputs(module.eval()(x)).values()
        module.train()
        return [*found, torch.rand(2)]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 9


@each
def test_results_may_be_changed_in_place(name: str) -> None:
    """Where stock allows it: GRU's result is no tensor that its gradient needs."""
    module, x = CLASSES[name](5, 9), torch.randn(4, 6, 5)

    def run() -> Any:
        y, _ = module(x)
        torch.relu_(y)
        return torch.autograd.grad(y.sum(), list(module.parameters()))

    stock = contract.said(run)
    assert isinstance(stock, tuple) == (name == "gru")
    with switching.accelerated(*OPS):
        ours = contract.said(run)
    if name == "gru":
        torch.testing.assert_close(ours, stock)
    else:
        assert "modified by an inplace operation" in ours
    with torch.backends.mkldnn.flags(enabled=False):
        stock = run()
        with switching.accelerated(*OPS):
            torch.testing.assert_close(run(), stock)


@each
def test_graphs_that_are_kept(name: str) -> None:
    module, x = CLASSES[name](5, 9), torch.randn(4, 6, 5, requires_grad=True)
    with switching.accelerated(*OPS):
        y = module(x)[0].sum()
        twice = [torch.autograd.grad(y, x, retain_graph=True)[0] for _ in range(2)]
        assert torch.equal(*twice)
        torch.autograd.grad(y, x)
        with pytest.raises(RuntimeError, match="second time"):
            torch.autograd.grad(y, x)


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


def packed(name: str) -> Any:
    sequence = pack_padded_sequence(X, torch.tensor([4, 3, 3, 2, 1, 1]))
    return module_of(name)(sequence)[0].data


def subclass(name: str) -> Any:
    return module_of(name)(X.as_subclass(Sub))[0].as_subclass(Tensor)


FORWARDED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "double": ("dtype", lambda n: module_of(n).double()(X.double())[0]),
    "bfloat16": ("dtype", lambda n: module_of(n).bfloat16()(X.bfloat16())[0]),
    "packed": ("argument", packed),
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
