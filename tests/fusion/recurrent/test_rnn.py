"""nn.RNN by tanh and ReLU: padded, packed and a cell at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from recurring import Result, rows
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from pai_torchacc import _C

NAMES = ("rnn_tanh", "rnn_relu")
OPS = tuple(f"{name}{end}" for name in NAMES for end in ("", "_backward"))

each = pytest.mark.parametrize("name", NAMES)
ways = pytest.mark.parametrize("way", ["padded", "packed", "cell"])

VARIANTS: dict[str, tuple[tuple[int, int, int, int], dict[str, Any]]] = {
    "rows": ((5, 7, 9, 70), {}),
    "one row": ((3, 1, 12, 40), {}),
    "few": ((1, 3, 5, 130), {"batch_first": True}),
    "no bias": ((4, 6, 8, 17), {"bias": False}),
    "two layers": ((4, 5, 6, 20), {"num_layers": 2, "bidirectional": True}),
}
X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(1))
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


def trained(way: str, module: nn.Module) -> list[Tensor]:
    x = X.clone().requires_grad_()
    found = run_by(way, module, x)
    loss = sum((t * t.cos()).sum() for t in found)
    return [*found, *torch.autograd.grad(loss, [x, *module.parameters()])]


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
        loss = sum((t * t.cos()).sum() for t in found.values())
        wanted = {"x": x} | dict(module.named_parameters())
        grads = torch.autograd.grad(loss, list(wanted.values()))
        with torch.no_grad():
            plain = module(x)[0]
        found |= dict(zip(wanted, grads, strict=True))
        return found | {"without gradient": plain}

    with switching.accelerated(*OPS, row=row):
        forward, backward = (
            switching.hits(f"{name}{end}") for end in ("", "_backward")
        )
        contract.hold(case)
        assert forward.accelerated == 2 * backward.accelerated > 0
        assert not forward.failed


@ways
@each
def test_as_stock(name: str, way: str) -> None:
    module = module_of(name, way)

    def run() -> list[Tensor]:
        found = trained(way, module)
        with torch.no_grad():
            return [*found, *run_by(way, module, X)]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == (4 if way == "cell" else 2)
        assert not hits.forwarded


@ways
@each
def test_numbers_that_are_not_finite(name: str, way: str) -> None:
    module, x = module_of(name, way), X.clone()
    for row, value in enumerate([float("nan"), float("inf"), -float("inf")]):
        x[0, row, 1] = value
    x.requires_grad_()

    def run() -> list[Tensor]:
        found = run_by(way, module, x)
        return [*found, *torch.autograd.grad(found[0].sum(), [x])]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, equal_nan=True)


@ways
@each
def test_second_derivatives(name: str, way: str) -> None:
    module, x = module_of(name, way), X.clone().requires_grad_()

    def run() -> list[Tensor]:
        y = run_by(way, module, x)[0]
        (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), [x, *module.parameters()])]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@pytest.mark.parametrize("which", ["weight_ih", "weight_hh", "bias_hh", "y"])
@ways
@each
def test_what_changes_before_backward(name: str, way: str, which: str) -> None:
    """An error, or the gradient as it was, where stock has the one or the other."""

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

    stock = contract.said(run)
    with switching.accelerated(*OPS):
        ours = contract.said(run)
    if isinstance(stock, str):
        assert "modified by an inplace operation" in stock
        assert "modified by an inplace operation" in ours
    else:
        torch.testing.assert_close(ours, stock)


@ways
@each
def test_what_stock_does(name: str, way: str) -> None:
    def run() -> list[Tensor]:
        found = run_by(way, module_of(name, way).double(), X.double())
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return [*found, *run_by(way, module_of(name, way), X)]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        contract.exactly([t.detach() for t in run()], [t.detach() for t in stock])
        assert set(hits.forwarded) == {"dtype", "mode or transform active"}
        assert not hits.accelerated


@ways
@each
def test_rows_that_break_and_shadow_checks(name: str, way: str) -> None:
    module = module_of(name, way)
    stock = trained(way, module)
    try:
        for op in (name, f"{name}_backward"):
            with switching.accelerated(*OPS):
                hits = switching.hits(op)
                internals.inject_failure(op)
                torch.testing.assert_close(trained(way, module), stock)
                assert hits.failed == 1
            internals.reset_quarantine()
    finally:
        internals.reset_quarantine()
    with switching.accelerated(*OPS, verify=1):
        torch.testing.assert_close(trained(way, module), stock)
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


@ways
@each
def test_switched_off_between_forward_and_backward(name: str, way: str) -> None:
    module = module_of(name, way)
    parameters = list(module.parameters())
    stock = torch.autograd.grad(run_by(way, module, X)[0].sum(), parameters)
    with switching.accelerated(*OPS):
        y = run_by(way, module, X)[0].sum()
    torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)
    y = run_by(way, module, X)[0].sum()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)
