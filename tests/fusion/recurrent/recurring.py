"""Recurrent layers and their cells: trained in tests, and held to what stock does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

NAMES = ("lstm", "gru")
RNNS = ("rnn_tanh", "rnn_relu")
OPS = tuple(f"{name}{end}" for name in NAMES for end in ("", "_backward"))
RNN_OPS = tuple(f"{name}{end}" for name in RNNS for end in ("", "_backward"))
CLASSES: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}

each = pytest.mark.parametrize("name", NAMES)
VECTORS = [row for row in switching.runnable_rows("lstm") if row != "scalar"]
"""Rows; where there are no vectors, the row "scalar" serves."""

rows = pytest.mark.parametrize("row", VECTORS or ["scalar"])

Result = dict[str, Tensor]
Run = Callable[[], Any]
"""What a program gives, the same whenever it runs."""

Call = Callable[[Any, Tensor], Tensor]
"""One result of a module for some input."""


def operators(name: str) -> tuple[str, ...]:
    """What a test of this operator switches on: its family."""
    return OPS if name in NAMES else RNN_OPS


def numbers(*sizes: int, seed: int = 1) -> Tensor:
    """Normal numbers, the same each time."""
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def put_not_finite(x: Tensor) -> None:
    """NaN and both infinities, one in each of the first rows."""
    x[:3, 1] = torch.tensor([float("nan"), float("inf"), -float("inf")])


def module_of(name: str, **options: Any) -> nn.RNNBase:
    """A module from 5 to 9 numbers, the same each time."""
    torch.manual_seed(3)
    return CLASSES[name](5, 9, **options)


def states_by(name: str, draw: Callable[[], Tensor]) -> Any:
    """What a module takes as its first states: h, or h and c."""
    return (draw(), draw()) if name == "lstm" else draw()


def listed(states: Any) -> list[Tensor]:
    """States one after the other, however a module takes or gives them."""
    return list(states) if isinstance(states, tuple) else [states]


def outputs(found: Any) -> Result:
    """Y and the states by name."""
    y, states = found
    return {"y": y, **dict(zip("hc", listed(states), strict=False))}


def with_gradients(found: Result, module: nn.Module, x: Tensor, hx: Any = ()) -> Result:
    """Results, and gradients of everything by all of them."""
    loss = sum((t * t.cos()).sum() for t in found.values())
    wanted = {"x": x} | {f"hx {i}": t for i, t in enumerate(listed(hx))}
    wanted |= dict(module.named_parameters())
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return found | dict(zip(wanted, grads, strict=True))


def trained(module: nn.RNNBase, x: Tensor, hx: Any = ()) -> Result:
    """Outputs, and gradients of everything by all of them."""
    found = outputs(module(x, hx) if listed(hx) else module(x))
    return with_gradients(found, module, x, hx)


def derived_twice(loss: Tensor, x: Tensor, module: nn.Module) -> list[Tensor]:
    """The gradient of x, and what it depends on."""
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    return [g.detach(), *torch.autograd.grad(g.sum(), [x, *module.parameters()])]


def double(module: nn.Module, call: Call, x: Tensor) -> Tensor:
    return call(module.double(), x.double())


def autocasting(module: nn.Module, call: Call, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return call(module, x)


def functional(module: nn.Module, call: Call, x: Tensor) -> Any:
    module.requires_grad_(False)
    return torch.func.grad(lambda x: call(module, x).sum())(x)


def hooked(module: nn.Module, call: Call, x: Tensor) -> Any:
    weight = next(w for k, w in module.named_parameters() if "weight_hh" in k)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        return torch.autograd.grad(call(module, x).sum(), weight)


Forwarded = dict[str, tuple[str, Callable[[Any, Call, Tensor], Any]]]
"""A reason, and what a program does with a module."""

FORWARDED: Forwarded = {
    "double": ("dtype", double),
    "autocast": ("mode or transform active", autocasting),
    "functorch": ("tensor subclass", functional),
    "hooks": ("hooks", hooked),
}
"""What stock does, whatever the module."""


def by_name(function: str, *args: Any) -> Run:
    """A call of torch's function as it is when the call is made."""
    return lambda: getattr(torch._VF, function)(*args)


def hold_numbers(
    name: str,
    row: str,
    case: contract.Case,
    calls: tuple[int, int] = (2, 1),
    n_parts: int = 1,
) -> None:
    """Numbers of a row are right; calls forward and backward for each part of a net."""
    with switching.accelerated(*operators(name), row=row):
        forward, backward = (
            switching.hits(f"{name}{end}") for end in ("", "_backward")
        )
        contract.hold(case)
        assert calls[1] * forward.accelerated == calls[0] * backward.accelerated > 0
        assert not forward.failed
        assert backward.accelerated % n_parts == 0
        assert not backward.forwarded


def hold(
    name: str,
    run: Run,
    forward: int | None = None,
    backward: int | None = None,
    *,
    equal_nan: bool = False,
) -> switching.Hits:
    """Results are stock's but for rounding; how many calls are accelerated."""
    stock = run()
    with switching.accelerated(*operators(name)):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        torch.testing.assert_close(run(), stock, equal_nan=equal_nan)
    for hit, expected in zip(hits, (forward, backward), strict=True):
        assert expected is None or hit.accelerated == expected, hit
    return hits[0]


def hold_forwarded(name: str, run: Run, reason: str) -> None:
    """One call is stock's for this reason, to the bit or to the error."""
    stock = contract.said(run)
    with switching.accelerated(*operators(name)):
        hits = switching.hits(name)
        contract.exactly(contract.said(run), stock)
        assert not hits.accelerated
        assert hits.forwarded == {reason: 1}


def hold_errors(name: str, calls: list[Run]) -> None:
    """Mistakes get torch's own errors."""
    stock = [contract.said(call) for call in calls]
    assert all(isinstance(text, str) for text in stock)
    with switching.accelerated(*operators(name)):
        assert [contract.said(call) for call in calls] == stock


def hold_changed(name: str, run: Run) -> None:
    """An error, or the gradient as it was, where stock has the one or the other."""
    stock = contract.said(run)
    with switching.accelerated(*operators(name)):
        ours = contract.said(run)
    if isinstance(stock, str):
        assert "modified by an inplace operation" in stock
        assert "modified by an inplace operation" in ours
    else:
        torch.testing.assert_close(ours, stock)


def hold_broken_rows(name: str, run: Run) -> None:
    """A row that fails, forward or backward, does so once, and stock goes on."""
    stock = run()
    try:
        for op in (name, f"{name}_backward"):
            with switching.accelerated(*operators(name)):
                hits = switching.hits(op)
                internals.inject_failure(op)
                torch.testing.assert_close(run(), stock)
                assert hits.failed == 1
            internals.reset_quarantine()
    finally:
        internals.reset_quarantine()


def hold_shadow_checks(name: str, run: Run, calls: list[int] | None = None) -> None:
    """Nothing is quarantined with every call checked; calls forward and backward."""
    stock = run()
    with switching.accelerated(*operators(name), verify=1):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        torch.testing.assert_close(run(), stock)
        assert calls is None or [h.accelerated for h in hits] == calls
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


def hold_switched_off(name: str, module: nn.Module, call: Callable[[], Tensor]) -> None:
    """Backward goes on, by stock, after switching off; and on after switching on."""
    parameters = list(module.parameters())
    stock = torch.autograd.grad(call().sum(), parameters)
    with switching.accelerated(*operators(name)):
        y = call().sum()
    assert not {name, f"{name}_cell"} & set(vars(torch._VF))
    hits = [switching.hits(op) for op in operators(name)]
    torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)
    assert not any(hit.accelerated for hit in hits)
    y = call().sum()
    with switching.accelerated(*operators(name)):
        torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)


def hold_by_any_threads(name: str, run: Run) -> None:
    """Results without gradients have the same bits whatever torch's threads."""
    before, found = torch.get_num_threads(), []
    try:
        with switching.accelerated(name), torch.no_grad():
            for n in (1, 2):
                torch.set_num_threads(n)
                found.append(run())
    finally:
        torch.set_num_threads(before)
    contract.exactly(*found)


def hold_in_threads(
    train: Callable[[nn.RNNBase], Result],
    times: int,
    meanwhile: Callable[[], None] | None = None,
) -> None:
    """Threads that train get stock's results; something else may go on meanwhile."""
    modules = [module_of(name) for name in NAMES]
    with ptac.disabled():
        stock = [train(module) for module in modules]
    trouble: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(times):
                for module, expected in zip(modules, stock, strict=True):
                    torch.testing.assert_close(train(module), expected)
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    while meanwhile and any(thread.is_alive() for thread in threads):
        meanwhile()
    for thread in threads:
        thread.join()
    assert not trouble
