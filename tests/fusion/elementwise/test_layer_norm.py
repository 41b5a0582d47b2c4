"""LayerNorm and its gradient on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

OPS = ("layer_norm", "layer_norm_backward")


def both(
    shape: tuple[int, ...], n_last: int, affine: bool, away: float
) -> contract.Case:
    """The norm and the gradients of all that it is given."""
    normalized = shape[len(shape) - n_last :]

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = (contract.draw(*shape, dtype=dtype) + away).requires_grad_()
        given = {"x": x}
        if affine:
            given["weight"] = contract.draw(*normalized, dtype=dtype).requires_grad_()
            given["bias"] = contract.draw(*normalized, dtype=dtype).requires_grad_()
        y = F.layer_norm(x, normalized, given.get("weight"), given.get("bias"))
        grads = torch.autograd.grad(
            y, list(given.values()), contract.draw(*shape, dtype=dtype)
        )
        return {"y": y, **dict(zip(given, grads, strict=True))}

    return case


@pytest.mark.parametrize(
    ("shape", "n_last", "away"),
    [
        ((5, 7), 1, 0),
        ((300, 64), 1, 0),
        ((4, 25, 100), 1, 3),
        ((2, 3, 5, 41), 2, 0),
        ((40, 1500), 1, 0),
    ],
)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("row", switching.runnable_rows("layer_norm"))
def test_layer_norm_is_close(
    row: str, affine: bool, shape: tuple[int, ...], n_last: int, away: float
) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(both(shape, n_last, affine, away))
        assert all(h.accelerated for h in hits)


@pytest.mark.parametrize("row", switching.runnable_rows("layer_norm"))
def test_what_is_saved_and_parts_of_gradients(row: str) -> None:
    """Statistics have stock's sizes; gradients that nobody asks for are not there."""
    x, weight, grad = torch.randn(6, 5, 40), torch.rand(40), torch.randn(6, 5, 40)
    backward = torch.ops.aten.native_layer_norm_backward

    def run() -> list[Tensor | None]:
        y, mean, rstd = torch.native_layer_norm(x, [40], weight, None, 1e-5)
        found: list[Tensor | None] = [y, mean, rstd]
        for mask in range(1, 8):
            wanted = [bool(mask >> i & 1) for i in range(3)]
            found += backward(grad, x, [40], mean, rstd, weight, weight, wanted)
        return found

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("layer_norm_backward")
        for a, b in zip(run(), stock, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert a.stride() == b.stride()
                torch.testing.assert_close(a, b, rtol=1e-5, atol=2e-6)
        assert hits.accelerated == 7


@pytest.mark.parametrize("row", switching.runnable_rows("layer_norm"))
def test_what_is_not_finite(row: str) -> None:
    """Stays in its row."""
    x = torch.randn(6, 70)
    x[1, 3], x[2, 4], x[3, 5], x[4] = float("nan"), float("inf"), -float("inf"), 2.0
    stock = F.layer_norm(x, (70,))
    with switching.accelerated(*OPS, row=row):
        ours = F.layer_norm(x, (70,))
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("scale", [1e20, 1e37])
@pytest.mark.parametrize("away", [0, 9])
@pytest.mark.parametrize("row", switching.runnable_rows("layer_norm"))
def test_numbers_whose_sums_no_float_holds(row: str, away: int, scale: float) -> None:
    """Stock's results are then NaN or 0; ours are those of float64."""
    x = (torch.randn(5, 700) + away) * scale
    y, mean, rstd = torch.native_layer_norm(x.double(), [700], None, None, 1e-5)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("layer_norm")
        ours = torch.native_layer_norm(x, [700], None, None, 1e-5)
        assert hits.accelerated == 1
    torch.testing.assert_close(ours[0].double(), y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours[1].double(), mean, rtol=1e-5, atol=1e-6 * scale)
    torch.testing.assert_close(ours[2].double(), rstd, rtol=1e-4, atol=0)


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(0, 1),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_layouts_and_dtypes(number: int) -> None:
    x = LAYOUTS[number](torch.randn(3, 6, 20, 20))
    weight = torch.rand(20).to(x.dtype)

    def run() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = F.layer_norm(leaf, (20,), weight, weight)
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.ones_like(y))]

    stock = run()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = run()
        assert [h.accelerated for h in hits] == [number < 5] * 2
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=5e-6)


def test_modules_copies_transforms_and_threads() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.LayerNorm(40))
    x = torch.randn(700, 40)

    def run(model: nn.Module) -> list[Tensor]:
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    def each() -> Tensor:
        norm = torch.func.grad(lambda x: F.layer_norm(x, (40,)).square().sum())
        return torch.func.vmap(norm)(x)

    stock, of_each = run(copy.deepcopy(model)), each()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        found = run(copy.deepcopy(model))
        assert all(h.accelerated == 1 for h in hits)
        for a, b in zip(found, stock, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(each(), of_each, rtol=1e-4, atol=1e-5)
        before = torch.get_num_threads()
        torch.set_num_threads(2 if before == 1 else 1)
        try:
            contract.exactly(run(copy.deepcopy(model)), found)
        finally:
            torch.set_num_threads(before)
        leaf = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda x: F.layer_norm(x, (5,)), leaf)
