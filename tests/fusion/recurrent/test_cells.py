"""nn.LSTMCell and nn.GRUCell: numbers, gradients, programs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from recurring import OPS, Result, each, rows
from torch import Tensor, nn

from pai_torchacc import _C

CELLS: dict[str, type[nn.RNNCellBase]] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}

SIZES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "one row": ((1, 9, 21), {}),
    "few rows": ((3, 33, 70), {}),
    "four rows": ((4, 16, 64), {}),
    "rows": ((13, 12, 40), {}),
    "no bias": ((2, 8, 17), {"bias": False}),
    "few units": ((5, 1, 3), {}),
    "long sums": ((1, 600, 48), {}),
}


def cell_of(name: str, **options: Any) -> nn.RNNCellBase:
    torch.manual_seed(3)
    return CELLS[name](5, 9, **options)


def numbers(*sizes: int, seed: int = 1) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


X = numbers(6, 5)


def states_of(name: str, n_rows: int = 6, n: int = 9) -> Any:
    states = numbers(n_rows, n, seed=2), numbers(n_rows, n, seed=3)
    return states if name == "lstm" else states[0]


def listed(states: Any) -> list[Tensor]:
    return list(states) if isinstance(states, tuple) else [states]


def trained(name: str, cell: nn.RNNCellBase, n_steps: int = 3) -> list[Tensor]:
    """States after some steps, and gradients of everything by all of them."""
    xs = numbers(n_steps, 6, 5).requires_grad_()
    first = [s.requires_grad_() for s in listed(states_of(name))]
    states: Any = tuple(first) if name == "lstm" else first[0]
    for x in xs:
        states = cell(x, states)
    found = listed(states)
    loss = sum((t * t.cos()).sum() for t in found)
    return [*found, *torch.autograd.grad(loss, [xs, *first, *cell.parameters()])]


@pytest.mark.parametrize("what", SIZES)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    (n_rows, n_in, n_hidden), options = SIZES[what]

    def case(dtype: torch.dtype) -> Result:
        cell = CELLS[name](n_in, n_hidden, **options).to(dtype)
        x = contract.draw(2, n_rows, n_in, dtype=dtype).requires_grad_()
        first = [
            contract.draw(n_rows, n_hidden, dtype=dtype).requires_grad_()
            for _ in range(1 + (name == "lstm"))
        ]
        states: Any = tuple(first) if name == "lstm" else first[0]
        for step in x:
            states = cell(step, states)
        found = dict(zip("hc", listed(states), strict=False))
        loss = sum((t * t.cos()).sum() for t in found.values())
        wanted = {"x": x} | {f"first {i}": t for i, t in enumerate(first)}
        wanted |= dict(cell.named_parameters())
        grads = torch.autograd.grad(loss, list(wanted.values()))
        with torch.no_grad():
            plain = zip("hc", listed(cell(x[0])), strict=False)
        found |= dict(zip(wanted, grads, strict=True))
        return found | {f"without gradient {k}": t for k, t in plain}

    with switching.accelerated(*OPS, row=row):
        forward, backward = (
            switching.hits(f"{name}{end}") for end in ("", "_backward")
        )
        contract.hold(case)
        assert 2 * forward.accelerated == 3 * backward.accelerated > 0
        assert not forward.failed


@each
def test_views_and_states_that_are_expanded(name: str) -> None:
    cell = cell_of(name)
    x = numbers(4, 9)[:, 2:7]
    h = numbers(1, 9).expand(4, 9)
    states = (h, numbers(8, 9)[::2]) if name == "lstm" else h

    def run() -> list[Tensor]:
        found = listed(cell(x, states))
        loss = sum(t.sum() for t in found)
        found += torch.autograd.grad(loss, list(cell.parameters()))
        with torch.no_grad():
            found += listed(cell(x, states))
        return [*found, *listed(cell(x[0]))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 3


@each
def test_gradients_of_some(name: str) -> None:
    def run() -> list[Tensor]:
        cell, x = cell_of(name), X.clone().requires_grad_()
        found = list(torch.autograd.grad(listed(cell(x))[-1].sum(), x))
        frozen = cell_of(name).requires_grad_(False)
        found += torch.autograd.grad(listed(frozen(x))[0].sum(), x)
        h = listed(cell(x.detach(), states_of(name)))[0]
        return found + list(torch.autograd.grad(h.sum(), cell.bias_hh))

    stock = run()
    with switching.accelerated(*OPS):
        backward = switching.hits(f"{name}_backward")
        torch.testing.assert_close(run(), stock)
        assert backward.accelerated == 3


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    cell, x = cell_of(name), X.clone()
    for row, value in enumerate([float("nan"), float("inf"), -float("inf")]):
        x[row, 1] = value

    def run() -> list[Tensor]:
        with torch.no_grad():
            return [*listed(cell(x)), *listed(cell(x[:3])), *listed(cell(x[1]))]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, equal_nan=True)


@each
def test_second_derivatives(name: str) -> None:
    cell, x = cell_of(name), X.clone().requires_grad_()

    def run() -> list[Tensor]:
        h = listed(cell(x, cell(x)))[0]
        (g,) = torch.autograd.grad(h.pow(2).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), [x, *cell.parameters()])]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 2


@each
def test_states_may_be_changed_in_place(name: str) -> None:
    def run() -> Any:
        cell = cell_of(name)
        found = listed(cell(X, states_of(name)))
        for state in found:
            torch.relu_(state)
        return torch.autograd.grad(sum(found).sum(), list(cell.parameters()))

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@pytest.mark.parametrize("which", ["weight_ih", "weight_hh", "bias_ih", "bias_hh"])
@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("of_h", [True, False])
@each
def test_parameters_that_change_before_backward(
    name: str, of_h: bool, of_x: bool, which: str
) -> None:
    """An error, or the gradient as it was, where stock has the one or the other."""

    def run() -> Any:
        cell, x = cell_of(name), X.clone().requires_grad_(of_x)
        states = states_of(name)
        listed(states)[0].requires_grad_(of_h)
        h = listed(cell(x, states))[0]
        with torch.no_grad():
            getattr(cell, which).mul_(3)
        wanted = [x, *cell.parameters()][not of_x :]
        return torch.autograd.grad(h.pow(2).sum(), wanted)

    stock = contract.said(run)
    with switching.accelerated(*OPS):
        ours = contract.said(run)
    if isinstance(stock, str):
        assert "modified by an inplace operation" in stock
        assert "modified by an inplace operation" in ours
    else:
        torch.testing.assert_close(ours, stock)


@each
def test_weights_with_other_memory_before_backward(name: str) -> None:
    def run() -> Any:
        cell, x = cell_of(name), X.clone().requires_grad_()
        h = listed(cell(x))[0]
        cell.weight_hh.data = cell.weight_hh.data * 2
        cell.weight_ih.data = cell.weight_ih.data * 3
        return torch.autograd.grad(h.sum(), [x, *cell.parameters()])

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


def autocasting(name: str) -> Any:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return listed(cell_of(name)(X))[0]


def functional(name: str) -> Any:
    cell = cell_of(name).requires_grad_(False)
    return torch.func.grad(lambda x: listed(cell(x))[0].sum())(X)


def hooked(name: str) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        cell = cell_of(name)
        return torch.autograd.grad(listed(cell(X))[0].sum(), cell.weight_hh)


def double(name: str) -> Any:
    return listed(cell_of(name).double()(X.double()))[0]


FORWARDED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "double": ("dtype", double),
    "no rows": ("empty", lambda name: listed(cell_of(name)(X[:0]))[0]),
    "autocast": ("mode or transform active", autocasting),
    "functorch": ("tensor subclass", functional),
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


@each
def test_mistakes_get_torchs_own_errors(name: str) -> None:
    cell = cell_of(name)
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]

    def call(*args: Any) -> Callable[[], Any]:
        return lambda: getattr(torch._VF, f"{name}_cell")(*args)

    calls: list[Callable[[], Any]] = [
        call(X),
        call(X[:, :3], states_of(name), *weights),
        call(X, states_of(name, 5), *weights),
        call(X, states_of(name, 6, 8), *weights),
        call(X, states_of(name), *weights[:3], weights[3][:5]),
        call(X.tolist(), states_of(name), *weights),
        call(X, (X, X, X), *weights),
    ]
    stock = [contract.said(mistake) for mistake in calls]
    assert all(isinstance(text, str) for text in stock)
    with switching.accelerated(*OPS):
        assert [contract.said(mistake) for mistake in calls] == stock


@each
def test_rows_that_break(name: str) -> None:
    cell = cell_of(name)

    def run() -> list[Tensor]:
        found = trained(name, cell)
        with torch.no_grad():
            return [*found, *listed(cell(X))]

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
    cell = cell_of(name)

    def run() -> list[Tensor]:
        found = trained(name, cell)
        with torch.no_grad():
            return [*found, *listed(cell(X))]

    stock = run()
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        torch.testing.assert_close(run(), stock)
        assert [h.accelerated for h in hits] == [4, 3]
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    cell = cell_of(name)
    parameters = list(cell.parameters())
    stock = torch.autograd.grad(listed(cell(X))[0].sum(), parameters)
    with switching.accelerated(*OPS):
        h = listed(cell(X))[0].sum()
    assert f"{name}_cell" not in vars(torch._VF)
    hits = [switching.hits(op) for op in OPS]
    torch.testing.assert_close(torch.autograd.grad(h, parameters), stock)
    assert not any(hit.accelerated for hit in hits)
    h = listed(cell(X))[0].sum()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(torch.autograd.grad(h, parameters), stock)


@each
def test_copies_and_scripts(name: str) -> None:
    cell = cell_of(name)
    stock = [t.detach() for t in listed(cell(X))]
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        with torch.no_grad():
            torch.testing.assert_close(listed(copy.deepcopy(cell)(X)), stock)
        assert hits.accelerated == 1
        torch.jit._state._clear_class_state()
        script = torch.jit.script(cell)
        assert f"aten::{name}_cell" in str(script.inlined_graph)
        contract.exactly([t.detach() for t in listed(script(X))], stock)


@each
def test_the_result_does_not_depend_on_threads(name: str) -> None:
    cell = CELLS[name](300, 400)
    threads = torch.get_num_threads()
    found: list[list[Tensor]] = []
    try:
        with switching.accelerated(name), torch.no_grad():
            for n in (1, 2):
                torch.set_num_threads(n)
                found.append(
                    [t for m in (1, 3, 40) for t in listed(cell(numbers(m, 300)))]
                )
    finally:
        torch.set_num_threads(threads)
    contract.exactly(*found)
