"""Softmax and log-softmax over every dimension, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

OPS = ("softmax", "softmax_backward", "log_softmax", "log_softmax_backward")
FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "softmax": F.softmax,
    "log_softmax": F.log_softmax,
}
SHAPES = [
    ((40, 10), 1),
    ((33, 97), -1),
    ((4, 1000), 1),
    ((20, 300), 0),
    ((3, 21, 100), 1),
    ((2, 300, 17), 1),
    ((2, 5, 9, 31), 1),
    ((2, 3, 4, 40), -2),
]


def both(name: str, shape: tuple[int, ...], dim: int, scale: float) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*shape, dtype=dtype, scale=scale).requires_grad_()
        y = FUNCTIONS[name](x, dim=dim)
        grad = contract.draw(*shape, dtype=dtype)
        return {"y": y, "grad": torch.autograd.grad(y, x, grad)[0]}

    return case


@pytest.mark.parametrize("scale", [1, 20])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("row", switching.runnable_rows("softmax"))
def test_any_dimension_is_close(
    row: str, name: str, shape: tuple[int, ...], dim: int, scale: float
) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        contract.hold(both(name, shape, dim, scale))
        assert all(h.accelerated for h in hits)


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("row", switching.runnable_rows("softmax"))
def test_what_is_not_finite(row: str, name: str, dim: int) -> None:
    """Rows that are masked, wholly or in part, with NaN or infinity."""
    inf, x = float("inf"), torch.randn(40, 40)
    for i, value in enumerate((-inf, inf, float("nan"))):
        x[i, 3 * i] = value
    x[5], x[:, 5] = -inf, -inf
    x[7, ::2] = -inf

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = FUNCTIONS[name](leaf, dim=dim)
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.ones_like(y))]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        for a, b in zip(run(), stock, strict=True):
            torch.testing.assert_close(a, b, rtol=5e-6, atol=2e-6, equal_nan=True)


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(0, 3),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@pytest.mark.parametrize("name", FUNCTIONS)
def test_layouts_and_dtypes(name: str, number: int) -> None:
    x = LAYOUTS[number](torch.randn(3, 6, 20, 20))

    def run() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = FUNCTIONS[name](leaf, dim=1)
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.cos(y.detach()))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        ours = run()
        assert hits.accelerated == (number < 5)
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=5e-6, atol=2e-6)


def test_few_elements_side_by_side_go_to_stock() -> None:
    x = torch.randn(4, 50, 3)
    stock = F.softmax(x, dim=1)
    with switching.accelerated(*OPS):
        hits = switching.hits("softmax")
        contract.exactly(F.softmax(x, dim=1), stock)
        assert hits.forwarded == {"shape": 1}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_errors_and_transforms(name: str) -> None:
    of, x = FUNCTIONS[name], torch.randn(20, 20)

    def run() -> list[Tensor]:
        vmapped = torch.func.vmap(lambda x: of(x, dim=0))(torch.randn(3, 20, 20) * 0)
        jacobian = torch.func.jacrev(lambda x: of(x, dim=0))(x)
        return [vmapped, jacobian]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)
        leaf = x.double().requires_grad_()
        assert torch.autograd.gradcheck(lambda x: of(x, dim=0), leaf)
        for dim in (2, -3):
            with pytest.raises(IndexError, match="Dimension out of range"):
                of(x, dim=dim)
