"""Activations that write to their argument: their numbers, tensors and versions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

CURVES: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh_,
    "sigmoid": torch.sigmoid_,
    "silu": partial(F.silu, inplace=True),
    "mish": partial(F.mish, inplace=True),
    "hardswish": partial(F.hardswish, inplace=True),
    "hardsigmoid": partial(F.hardsigmoid, inplace=True),
    "elu": partial(F.elu, inplace=True),
}
OPS = tuple(CURVES)
MODULES = (nn.SiLU, nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.SELU, nn.CELU)
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40, 1e38, -1e38]

rows = pytest.mark.parametrize("row", switching.runnable_rows("silu"))
curves = pytest.mark.parametrize("name", CURVES)


@pytest.mark.parametrize("n", [7, 300, 40000])
@curves
@rows
def test_close_to_float64(row: str, name: str, n: int) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(n, dtype=dtype, scale=3)
        given = x.data_ptr(), x._version
        y = CURVES[name](x)
        assert y is x
        assert (y.data_ptr(), y._version) == (given[0], given[1] + 1)
        return {"y": y}

    with switching.accelerated(*OPS, row=row):
        hits = switching.hits(name)
        contract.hold(case)
        assert hits.accelerated


@curves
@rows
def test_special_numbers_and_both_ways(row: str, name: str) -> None:
    """What is not finite has stock's place and kind; bits are those of a new tensor."""
    x = torch.cat([torch.linspace(-200, 200, 4003), torch.tensor(SPECIAL * 3)])
    stock = CURVES[name](x.clone())
    with switching.accelerated(*OPS, row=row):
        ours = CURVES[name](x.clone())
        new = getattr(F, name) if hasattr(F, name) else getattr(torch, name)
        contract.exactly(ours, new(x))
    torch.testing.assert_close(ours, stock, rtol=2e-6, atol=1e-6, equal_nan=True)


LAYOUTS: list[tuple[Callable[[Tensor], Tensor], bool]] = [
    (lambda x: x, True),
    (lambda x: x.to(memory_format=torch.channels_last), True),
    (lambda x: x.transpose(1, 2), True),
    (lambda x: x[1:], True),
    (lambda x: x[0, 0, 0, :1], True),
    (lambda x: x[:, 1:], False),
    (lambda x: x[..., ::2], False),
    (lambda x: x[:0], False),
    (lambda x: x.double(), False),
    (lambda x: x.bfloat16(), False),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@curves
def test_how_tensors_lie(name: str, number: int) -> None:
    """Where it is a view, what is around it stays."""
    layout, is_ours = LAYOUTS[number]
    torch.manual_seed(number)
    x = torch.randn(3, 4, 5, 6)

    def run() -> tuple[Tensor, Tensor]:
        base = x.clone()
        return CURVES[name](layout(base)), base

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        ours = run()
        assert hits.accelerated == int(is_ours), hits
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, check_stride=True)
    with switching.accelerated(*OPS), pytest.raises(RuntimeError, match="clone"):
        CURVES[name](x[:1].expand(3, 4, 5, 6))


@pytest.mark.parametrize("name", [name for name in CURVES if name != "hardsigmoid"])
def test_gradients(name: str) -> None:
    """Once, twice, and of what torch refuses: a leaf, and a tensor that was kept."""
    x = torch.linspace(-3, 3, 200)

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = CURVES[name](leaf * 2)
        (grad,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
        return [y.detach(), grad.detach(), *torch.autograd.grad(grad.sum(), leaf)]

    def of_leaf() -> None:
        CURVES[name](x.clone().requires_grad_())

    def of_kept() -> None:
        y = (x.clone().requires_grad_() * 1).sin()
        z = y.exp()
        CURVES[name](z)
        z.sum().backward()
        (y * y).sum().backward()

    stock = run(), contract.said(of_leaf), contract.said(of_kept)
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        ours = run(), contract.said(of_leaf), contract.said(of_kept)
        assert hits.accelerated == 2
    for a, b in zip(ours[0], stock[0], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert ours[1:] == stock[1:]
    assert "leaf" in str(stock[1])


def test_arguments_of_elu() -> None:
    x = torch.linspace(-3, 3, 300)
    calls: list[tuple[Callable[[Tensor], Tensor], int]] = [
        (lambda x: F.elu(x, 0.3, inplace=True), 1),
        (lambda x: F.elu(x, -1.0, inplace=True), 1),
        (lambda x: F.celu(x, 1.7, inplace=True), 1),
        (lambda x: F.selu(x, inplace=True), 1),
        (lambda x: torch.ops.aten.elu_(x, 2, 3, 0.5), 1),
        (lambda x: torch.ops.aten.elu_(x, 1, 1, -1), 0),
    ]
    for number, (call, n) in enumerate(calls):
        stock = call(x.clone())
        with switching.accelerated("elu"):
            hits = switching.hits("elu")
            ours = call(x.clone())
            if number < 4:
                assert hits.accelerated == n, (number, hits)
        torch.testing.assert_close(ours, stock)


def test_transforms_modes_and_checks() -> None:
    x = torch.linspace(-3, 3, 24).reshape(4, 6)

    def f(x: Tensor) -> Tensor:
        return F.silu(x * 1, inplace=True).sum()

    def all_of_them() -> list[Tensor]:
        found = [torch.func.vmap(torch.func.grad(f))(x), torch.func.functionalize(f)(x)]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(F.silu(x.clone(), inplace=True))
        with torch.inference_mode():
            found.append(F.silu(x.clone(), inplace=True))
        return found

    stock = all_of_them()
    with switching.accelerated(*OPS, verify=1):
        ours = all_of_them()
        hits = switching.hits("silu")
        checked = F.silu(x.clone(), inplace=True)
        assert hits.accelerated == 1
    torch.testing.assert_close(ours, stock)
    torch.testing.assert_close(checked, F.silu(x))


def test_modules_copies_threads_and_toggling() -> None:
    model = nn.Sequential(nn.Linear(20, 30), *(m(inplace=True) for m in MODULES))
    x = torch.randn(40, 20)

    stock = model(x)
    with switching.accelerated(*OPS):
        hits = switching.hits("elu")
        torch.testing.assert_close(copy.deepcopy(model)(x), stock)
        assert hits.accelerated == 3
        with ptac.disabled():
            contract.exactly(model(x), stock)
        results = switching.in_threads(lambda: model(x).detach())
    for y in results():
        torch.testing.assert_close(y, stock)
    contract.exactly(model(x), stock)
