"""nn.RNN by tanh and ReLU: padded, packed and a cell at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import pytest
import recurring
import switching
import torch
from recurring import (
    RNN_OPS,
    RNNS,
    Result,
    derived_twice,
    numbers,
    put_not_finite,
    rows,
    with_gradients,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

each = pytest.mark.parametrize("name", RNNS)
ways = pytest.mark.parametrize("way", ["padded", "packed", "cell"])

VARIANTS: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "rows": ((5, 7, 9, 70), {}),
    "one row": ((3, 1, 12, 40), {}),
    "few": ((1, 3, 5, 130), {"batch_first": True}),
    "no bias": ((4, 6, 8, 17), {"bias": False}),
    "two layers": ((4, 5, 6, 20), {"num_layers": 2, "bidirectional": True}),
}
X = numbers(4, 6, 5)
LENGTHS = torch.tensor([4, 1, 3, 3, 2, 1])


def module_of(name: str, way: str, **options: Any) -> nn.Module:
    torch.manual_seed(3)
    cls: Callable[..., nn.Module] = nn.RNNCell if way == "cell" else nn.RNN
    return cls(5, 9, nonlinearity=name.removeprefix("rnn_"), **options)


def run_by(way: str, module: nn.Module, x: Tensor) -> list[Tensor]:
    """Y and h, or states of a cell after two steps."""
    if way == "cell":
        return [module(x[1], module(x[0]))]
    if way == "packed":
        lengths = LENGTHS.clamp(max=len(x))
        x = pack_padded_sequence(x, lengths, enforce_sorted=False)  # type: ignore[assignment]
    y, h = module(x)
    return [y.data if way == "packed" else y, h]


def trained(way: str, module: nn.Module) -> Result:
    x = X.clone().requires_grad_()
    found = dict(zip("yh", run_by(way, module, x), strict=False))
    return with_gradients(found, module, x)


@pytest.mark.parametrize("what", VARIANTS)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    (n_steps, n_rows, n_in, n_hidden), options = VARIANTS[what]
    options = {**options, "nonlinearity": name.removeprefix("rnn_")}

    def case(dtype: torch.dtype) -> Result:
        module = nn.RNN(n_in, n_hidden, **options).to(dtype)
        turned = options.get("batch_first", False)
        leading = (n_rows, n_steps) if turned else (n_steps, n_rows)
        x = contract.draw(*leading, n_in, dtype=dtype).requires_grad_()
        found = dict(zip("yh", module(x), strict=True))
        found = with_gradients(found, module, x)
        with torch.no_grad():
            return found | {"without gradient": module(x)[0]}

    recurring.hold_numbers(name, row, case)


@ways
@each
def test_as_stock(name: str, way: str) -> None:
    module = module_of(name, way)

    def run() -> list[Tensor]:
        found = [*trained(way, module).values()]
        with torch.no_grad():
            return [*found, *run_by(way, module, X)]

    hits = recurring.hold(name, run, forward=4 if way == "cell" else 2)
    assert not hits.forwarded


@ways
@each
def test_numbers_that_are_not_finite(name: str, way: str) -> None:
    module, x = module_of(name, way), X.clone()
    put_not_finite(x[0])
    x.requires_grad_()

    def run() -> list[Tensor]:
        found = run_by(way, module, x)
        return [*found, *torch.autograd.grad(found[0].sum(), [x])]

    recurring.hold(name, run, equal_nan=True)


@ways
@each
def test_second_derivatives(name: str, way: str) -> None:
    module, x = module_of(name, way), X.clone().requires_grad_()

    def run() -> list[Tensor]:
        return derived_twice(run_by(way, module, x)[0].pow(3).sum(), x, module)

    recurring.hold(name, run)


@pytest.mark.parametrize("which", ["weight_ih", "weight_hh", "bias_hh", "y"])
@ways
@each
def test_what_changes_before_backward(name: str, way: str, which: str) -> None:
    def run() -> Any:
        module = module_of(name, "cell" if way == "cell" else "padded")
        x = X.clone().requires_grad_()
        y = run_by(way, module, x)[0]
        names = dict(module.named_parameters())
        with torch.no_grad():
            if which == "y":
                y.relu_()
            else:
                names[which if way == "cell" else f"{which}_l0"].mul_(3)
        return torch.autograd.grad(y.sum(), [x, *names.values()])

    recurring.hold_changed(name, run)


@ways
@each
def test_what_stock_does(name: str, way: str) -> None:
    def run() -> list[Tensor]:
        found = run_by(way, module_of(name, way).double(), X.double())
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return [*found, *run_by(way, module_of(name, way), X)]

    stock = run()
    with switching.accelerated(*RNN_OPS):
        hits = switching.hits(name)
        contract.exactly([t.detach() for t in run()], [t.detach() for t in stock])
        assert set(hits.forwarded) == {"dtype", "mode or transform active"}
        assert not hits.accelerated


@ways
@each
def test_rows_that_break_and_shadow_checks(name: str, way: str) -> None:
    module = module_of(name, way)
    recurring.hold_broken_rows(name, lambda: trained(way, module))
    recurring.hold_shadow_checks(name, lambda: trained(way, module))


@ways
@each
def test_switched_off_between_forward_and_backward(name: str, way: str) -> None:
    module = module_of(name, way)
    recurring.hold_switched_off(name, module, lambda: run_by(way, module, X)[0])
