"""nn.LSTM and nn.GRU on the CPU: numbers and gradients."""

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
    OPS,
    Result,
    derived_twice,
    each,
    module_of,
    outputs,
    put_not_finite,
    rows,
    states_by,
    trained,
)
from torch import Tensor

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

        def draw(*sizes: int) -> Tensor:
            return contract.draw(*sizes, dtype=dtype).requires_grad_()

        x = draw(*leading, n_in)
        hx = states_by(name, lambda: draw(n_parts, n_rows, n_hidden))
        found = trained(module, x, hx)
        with torch.no_grad():
            plain = outputs(module(x))
        return found | {f"without gradient {k}": t for k, t in plain.items()}

    recurring.hold_numbers(name, row, case, n_parts=n_parts)


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

    recurring.hold(name, run, backward=2 * len(outputs(module(x))) + 2)


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

    recurring.hold(name, run, forward=2)


@each
def test_second_derivatives(name: str) -> None:
    module, x = CLASSES[name](3, 4), torch.randn(3, 2, 3, requires_grad=True)

    def run() -> list[Tensor]:
        return derived_twice(module(x)[0].pow(2).sum(), x, module)

    recurring.hold(name, run, forward=1)


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

    recurring.hold(name, run)


@each
def test_weights_with_other_memory_before_backward(name: str) -> None:
    x = torch.randn(4, 6, 5, requires_grad=True)

    def run() -> Any:
        module = module_of(name)
        y, _ = module(x)
        module.weight_hh_l0.data = module.weight_hh_l0.data * 2
        module.weight_ih_l0.data = module.weight_ih_l0.data * 3
        return torch.autograd.grad(y.sum(), [x, *module.parameters()])

    recurring.hold(name, run)


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    module = CLASSES[name](6, 20)
    x = torch.randn(5, 8, 6)
    put_not_finite(x[2])

    def run() -> Result:
        with torch.no_grad():
            return outputs(module(x))

    recurring.hold(name, run, equal_nan=True)


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

    recurring.hold(name, run, forward=9)


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
        recurring.hold(name, run)


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
