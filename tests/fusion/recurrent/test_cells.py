"""nn.LSTMCell and nn.GRUCell: numbers, gradients, programs."""

from __future__ import annotations

import copy
from typing import Any

import contract
import pytest
import recurring
import switching
import torch
from recurring import (
    FORWARDED,
    OPS,
    Forwarded,
    Result,
    Run,
    by_name,
    derived_twice,
    each,
    listed,
    numbers,
    put_not_finite,
    rows,
    states_by,
    with_gradients,
)
from torch import Tensor, nn

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


X = numbers(6, 5)


def states_of(name: str, n_rows: int = 6, n: int = 9) -> Any:
    seeds = iter((2, 3))
    return states_by(name, lambda: numbers(n_rows, n, seed=next(seeds)))


def first(cell: nn.RNNCellBase, x: Tensor) -> Tensor:
    """The state h after a step."""
    return listed(cell(x))[0]


def stepped(cell: nn.RNNCellBase, xs: Tensor, states: Any) -> Result:
    """States after some steps, and gradients of everything by all of them."""
    after = states
    for x in xs:
        after = cell(x, after)
    found = dict(zip("hc", listed(after), strict=False))
    return with_gradients(found, cell, xs, states)


def trained(name: str, cell: nn.RNNCellBase) -> list[Tensor]:
    """States after three steps and one more without gradients, and gradients."""
    xs, states = numbers(3, 6, 5).requires_grad_(), states_of(name)
    for state in listed(states):
        state.requires_grad_()
    found = [*stepped(cell, xs, states).values()]
    with torch.no_grad():
        return [*found, *listed(cell(X))]


@pytest.mark.parametrize("what", SIZES)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    (n_rows, n_in, n_hidden), options = SIZES[what]

    def case(dtype: torch.dtype) -> Result:
        cell = CELLS[name](n_in, n_hidden, **options).to(dtype)

        def draw(*sizes: int) -> Tensor:
            return contract.draw(*sizes, dtype=dtype).requires_grad_()

        x = draw(2, n_rows, n_in)
        found = stepped(cell, x, states_by(name, lambda: draw(n_rows, n_hidden)))
        with torch.no_grad():
            plain = zip("hc", listed(cell(x[0])), strict=False)
        return found | {f"without gradient {k}": t for k, t in plain}

    recurring.hold_numbers(name, row, case, calls=(3, 2))


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

    recurring.hold(name, run, forward=3)


@each
def test_gradients_of_some(name: str) -> None:
    def run() -> list[Tensor]:
        cell, x = cell_of(name), X.clone().requires_grad_()
        found = list(torch.autograd.grad(listed(cell(x))[-1].sum(), x))
        frozen = cell_of(name).requires_grad_(False)
        found += torch.autograd.grad(listed(frozen(x))[0].sum(), x)
        h = listed(cell(x.detach(), states_of(name)))[0]
        return found + list(torch.autograd.grad(h.sum(), cell.bias_hh))

    recurring.hold(name, run, backward=3)


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    cell, x = cell_of(name), X.clone()
    put_not_finite(x)

    def run() -> list[Tensor]:
        with torch.no_grad():
            return [*listed(cell(x)), *listed(cell(x[:3])), *listed(cell(x[1]))]

    recurring.hold(name, run, equal_nan=True)


@each
def test_second_derivatives(name: str) -> None:
    cell, x = cell_of(name), X.clone().requires_grad_()

    def run() -> list[Tensor]:
        return derived_twice(listed(cell(x, cell(x)))[0].pow(2).sum(), x, cell)

    recurring.hold(name, run, forward=2)


@each
def test_states_may_be_changed_in_place(name: str) -> None:
    def run() -> Any:
        cell = cell_of(name)
        found = listed(cell(X, states_of(name)))
        for state in found:
            torch.relu_(state)
        return torch.autograd.grad(sum(found).sum(), list(cell.parameters()))

    recurring.hold(name, run)


@pytest.mark.parametrize("which", ["weight_ih", "weight_hh", "bias_ih", "bias_hh"])
@pytest.mark.parametrize("of_x", [True, False])
@pytest.mark.parametrize("of_h", [True, False])
@each
def test_parameters_that_change_before_backward(
    name: str, of_h: bool, of_x: bool, which: str
) -> None:
    def run() -> Any:
        cell, x = cell_of(name), X.clone().requires_grad_(of_x)
        states = states_of(name)
        listed(states)[0].requires_grad_(of_h)
        h = listed(cell(x, states))[0]
        with torch.no_grad():
            getattr(cell, which).mul_(3)
        wanted = [x, *cell.parameters()][not of_x :]
        return torch.autograd.grad(h.pow(2).sum(), wanted)

    recurring.hold_changed(name, run)


@each
def test_weights_with_other_memory_before_backward(name: str) -> None:
    def run() -> Any:
        cell, x = cell_of(name), X.clone().requires_grad_()
        h = listed(cell(x))[0]
        cell.weight_hh.data = cell.weight_hh.data * 2
        cell.weight_ih.data = cell.weight_ih.data * 3
        return torch.autograd.grad(h.sum(), [x, *cell.parameters()])

    recurring.hold(name, run)


WAYS: Forwarded = FORWARDED | {
    "no rows": ("empty", lambda cell, call, x: call(cell, x[:0]))
}


@pytest.mark.parametrize("what", WAYS)
@each
def test_what_stock_does(name: str, what: str) -> None:
    reason, way = WAYS[what]
    recurring.hold_forwarded(name, lambda: way(cell_of(name), first, X), reason)


@each
def test_mistakes_get_torchs_own_errors(name: str) -> None:
    cell = cell_of(name)
    weights = [cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh]

    def call(*args: Any) -> Run:
        return by_name(f"{name}_cell", *args)

    calls = [
        call(X),
        call(X[:, :3], states_of(name), *weights),
        call(X, states_of(name, 5), *weights),
        call(X, states_of(name, 6, 8), *weights),
        call(X, states_of(name), *weights[:3], weights[3][:5]),
        call(X.tolist(), states_of(name), *weights),
        call(X, (X, X, X), *weights),
    ]
    recurring.hold_errors(name, calls)


@each
def test_rows_that_break(name: str) -> None:
    cell = cell_of(name)
    recurring.hold_broken_rows(name, lambda: trained(name, cell))


@each
def test_shadow_checks(name: str) -> None:
    cell = cell_of(name)
    recurring.hold_shadow_checks(name, lambda: trained(name, cell), calls=[4, 3])


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    cell = cell_of(name)
    recurring.hold_switched_off(name, cell, lambda: first(cell, X))


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
    xs = [numbers(m, 300) for m in (1, 3, 40)]
    recurring.hold_by_any_threads(
        name, lambda: [t for x in xs for t in listed(cell(x))]
    )
