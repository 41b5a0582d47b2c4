"""Convolutions of many kinds of numbers, and of what is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

OPS = ("conv2d", "conv2d_backward")
TILES = [r for r in switching.runnable_rows("conv2d") if r.startswith("winograd")]
CLOSE = [r for r in TILES if "4x4" not in r]


def normal(x: Tensor) -> Tensor:
    return x


def after_relu(x: Tensor) -> Tensor:
    return x.relu()


def shifted(x: Tensor) -> Tensor:
    return x + 3


def after_batch_norm(x: Tensor) -> Tensor:
    """Channels of different sizes and means, as a norm's weight and bias leave them."""
    factors = torch.linspace(0.1, 3, x.shape[1], dtype=x.dtype).view(-1, 1, 1)
    return x * factors + factors.flip(0) - 1


def badly_scaled(x: Tensor) -> Tensor:
    """Channels that are six orders of magnitude apart."""
    powers = torch.linspace(-3, 3, x.shape[1], dtype=x.dtype).view(-1, 1, 1)
    return x * 10**powers


def heavy_tailed(x: Tensor) -> Tensor:
    return x**3


def sparse(x: Tensor) -> Tensor:
    return torch.where(x > 0.5, x, 0)


KINDS = [
    normal,
    after_relu,
    shifted,
    after_batch_norm,
    badly_scaled,
    heavy_tailed,
    sparse,
]


@lru_cache(2)
def kind_case(
    kind: Callable[[Tensor], Tensor], channels: int, size: int
) -> contract.Case:
    width = 6 if channels >= 128 else 14

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = kind(contract.draw(4, channels, width, width, dtype=dtype)).requires_grad_()
        scale = math.sqrt(2 / (size**2 * channels))
        w = contract.draw(64, channels, size, size, dtype=dtype, scale=scale)
        w.requires_grad_()
        y = F.conv2d(x, w, padding=size // 2)
        y.backward(contract.draw(*y.shape, dtype=dtype))
        return {"y": y, "x": x.grad, "weight": w.grad}

    return case


@pytest.mark.parametrize("row", CLOSE)
@pytest.mark.parametrize("channels", [8, 64, 128, 512])
@pytest.mark.parametrize("kind", KINDS)
def test_contract(row: str, kind: Callable[[Tensor], Tensor], channels: int) -> None:
    size = 5 if "5x5" in row else 3
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        contract.hold(kind_case(kind, channels, size))
        is_served = size == 3 or (channels <= 128 and kind is not sparse)
        assert (hits.accelerated == 1) == is_served


@lru_cache(2)
def thin_case(filled: float, size: int) -> contract.Case:
    def thinned(dtype: torch.dtype) -> Tensor:
        kept = torch.rand(4, 32, 28, 28) < filled
        return torch.where(kept, contract.draw(4, 32, 28, 28, dtype=dtype), 0)

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = thinned(dtype).requires_grad_()
        w = contract.draw(32, 32, size, size, dtype=dtype, scale=0.1)
        y = F.conv2d(x, w, padding=size // 2)
        y.backward(thinned(dtype))
        return {"y": y, "x": x.grad}

    return case


@pytest.mark.parametrize("row", CLOSE)
@pytest.mark.parametrize("filled", [0.5, 0.3, 0.12, 0.05, 0.01])
def test_images_that_are_mostly_zero(row: str, filled: float) -> None:
    """As a deep ReLU leaves them, and max pooling its gradients."""
    size = 5 if "5x5" in row else 3
    least = 0.4 if size == 5 else 0.0625 if "4x2" in row else 0
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(thin_case(filled, size))
        for h in hits[: 2 if row in switching.runnable_rows(OPS[1]) else 1]:
            assert h.accelerated == (filled > least)
            assert h.forwarded.get("values", 0) == (filled <= least)


def counting(w: Tensor) -> Tensor:
    return torch.ones_like(w)


def small_integers(w: Tensor) -> Tensor:
    return torch.randint(-4, 5, w.shape).to(w.dtype)


def quarters(w: Tensor) -> Tensor:
    return small_integers(w) / 4


@pytest.mark.parametrize("weights", [counting, small_integers, quarters])
@pytest.mark.parametrize("row", TILES)
def test_integers_are_exact(row: str, weights: Callable[[Tensor], Tensor]) -> None:
    """Sums of integers have no rounding errors in stock, and can be compared by ==."""
    x, w, grad = operands(row)
    x, grad, w = small_integers(x), small_integers(grad), weights(w)
    expected = results(x.double(), w.double(), grad.double())
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        ours = results(x, w, grad)
    for h in hits[: 2 if row in switching.runnable_rows(OPS[1]) else 1]:
        assert h.forwarded == {"values": 1}
    for name, found in ours.items():
        assert torch.equal(found.double(), expected[name])


@pytest.mark.parametrize("value", [0.04, 1 / 9])
@pytest.mark.parametrize("row", CLOSE)
def test_constant_filters(row: str, value: float) -> None:
    """Box filters, of which stock's sums have little error."""
    size = 5 if "5x5" in row else 3

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = torch.randint(0, 256, (4, 32, 28, 28)).to(dtype)
        w = torch.full((8, 32, size, size), value).to(dtype)
        return {"y": F.conv2d(x, w, padding=size // 2)}

    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        contract.hold(case)
        assert (hits.accelerated, hits.forwarded["values"]) == (0, 1)


@pytest.mark.parametrize("row", CLOSE)
def test_other_weights_are_served(row: str) -> None:
    """One weight among integers that is none, and weights that are all zero."""
    x, w, _ = operands(row)
    nearly = small_integers(w)
    nearly[-1, -1, -1, -1] = 0.3
    for weights in (nearly, torch.zeros_like(w)):
        with switching.accelerated("conv2d", row=row):
            hits = switching.hits("conv2d")
            F.conv2d(x, weights, padding=w.shape[2] // 2)
            assert hits.accelerated == 1


def test_denormal_numbers() -> None:
    x, w = torch.randn(2, 32, 12, 12) * 1e-40, torch.randn(32, 32, 3, 3)
    expected = F.conv2d(x.double(), w.double(), padding=1)
    for row in CLOSE:
        if "5x5" not in row:
            with switching.accelerated("conv2d", row=row):
                ours = F.conv2d(x, w, padding=1)
            assert (ours - expected).abs().max() < 1e-3 * expected.abs().max()


N = 16
"""Images, enough for a few of their strips to be convolved otherwise than the rest."""


def results(x: Tensor, w: Tensor, grad: Tensor) -> dict[str, Tensor]:
    """Forward and the gradient of the data."""
    x = x.clone().requires_grad_()
    y = F.conv2d(x, w, padding=w.shape[2] // 2)
    (grad_x,) = torch.autograd.grad(y, x, grad)
    return {"y": y.detach(), "x": grad_x}


def operands(row: str) -> tuple[Tensor, Tensor, Tensor]:
    size = 5 if "5x5" in row else 3
    return (
        torch.randn(N, 24, 40, 40),
        torch.randn(24, 24, size, size),
        torch.randn(N, 24, 40, 40),
    )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", TILES)
def test_what_is_not_finite_is_where_stocks_is(row: str, value: float) -> None:
    torch.manual_seed(0)
    x, w, grad = operands(row)
    for images in (x, grad):
        for place in ((1, 2, 17, 22), (2, 20, 0, 39)):
            images[place] = value
    stock = results(x, w, grad)
    assert not stock["y"].isfinite().all()
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        ours = results(x, w, grad)
        assert hits[0].accelerated == 1
        if row in switching.runnable_rows(OPS[1]):
            assert hits[1].accelerated == 1
    for name, theirs in stock.items():
        mine, is_whole = ours[name], theirs.isfinite()
        assert torch.equal(mine.isfinite(), is_whole)
        contract.exactly(mine[~is_whole], theirs[~is_whole])
        torch.testing.assert_close(
            mine[is_whole], theirs[is_whole], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("size", [1e5, 1e20, 1e30])
@pytest.mark.parametrize("row", TILES)
def test_next_to_a_giant(row: str, size: float) -> None:
    """Outputs that do not see it are as good as without it."""
    torch.manual_seed(0)
    x, w, grad = operands(row)
    reach = w.shape[2] // 2
    x[1, 2, 17, 22] = grad[1, 2, 17, 22] = size
    sees = torch.zeros(N, 1, 40, 40, dtype=torch.bool)
    sees[1, 0, 17 - reach : 18 + reach, 22 - reach : 23 + reach] = True
    exact = results(x.double(), w.double(), grad.double())
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("conv2d")
        ours = results(x, w, grad)
        assert hits.accelerated == 1
    for name, found in ours.items():
        errors = (found - exact[name]).abs()
        assert errors.masked_fill(sees, 0).max() < 3e-4
        assert (errors[sees.expand_as(errors)] < 1e-5 * size).all()


@pytest.mark.parametrize(
    "spoil",
    [lambda x: x**9, lambda x: (4 * x).exp(), lambda x: x.masked_fill(x > 3, math.nan)],
    ids=["powers", "exponentials", "NaN"],
)
def test_where_tiles_would_be_spoilt_everywhere_stock_convolves(spoil: Any) -> None:
    x, w, grad = operands("")
    x, grad = spoil(x), spoil(grad)
    stock = results(x, w, grad)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = results(x, w, grad)
        assert [h.accelerated for h in hits] == [0, 0]
    contract.exactly(ours, stock)


def test_any_number_of_threads_finds_the_same_giants() -> None:
    x, w = torch.randn(2, 512, 28, 28), torch.randn(512, 512, 3, 3)
    x[0, 3, 9, 9] = 1e6
    before, found = torch.get_num_threads(), []
    try:
        for n_threads in (1, 2, 3, 5):
            torch.set_num_threads(n_threads)
            with switching.accelerated("conv2d"):
                found.append(F.conv2d(x, w, padding=1))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert contract.same_bits(other, found[0])


def test_zeros_are_not_dwarfed() -> None:
    x, w = torch.zeros(2, 24, 40, 40), torch.randn(24, 24, 3, 3)
    x[torch.rand_like(x) > 0.9] = 5
    with switching.accelerated("conv2d"):
        hits = switching.hits("conv2d")
        ours = F.conv2d(x, w, padding=1)
        assert hits.accelerated == 1
    expected = F.conv2d(x, w, padding=1)
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)


def spoilt_weights(value: float) -> dict[str, Any]:
    """Stock's results, and ours by tiles, with a value among the weights."""
    torch.manual_seed(0)
    x, w, grad = operands("")
    w[5, 7, 1, 1] = value
    found = {"stock": results(x, w, grad)}
    with switching.accelerated(*OPS):
        return found | {"ours": results(x, w, grad)}


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_in_weights_it_spoils_its_channel(value: float) -> None:
    found = spoilt_weights(value)
    for name, channel in (("y", 5), ("x", 7)):
        mine, theirs = found["ours"][name], found["stock"][name]
        others = [c for c in range(24) if c != channel]
        assert mine[:, others].isfinite().all()
        assert (theirs.isfinite() | ~mine.isfinite()).all()


@pytest.mark.parametrize("width", [14, 30])
def test_weights_of_first_layers_and_infinity(width: int) -> None:
    """Idle lanes of a row of outputs do not meet it."""
    x, grad = torch.randn(2, 1, width, width), torch.randn(2, 12, width, width)
    x[0, 0, 5, width - 1] = math.inf
    one, zero = [1, 1], [0, 0]

    def gradient() -> Tensor:
        return torch.ops.aten.convolution_backward(
            grad,
            x,
            torch.ones(12, 1, 3, 3),
            None,
            one,
            one,
            one,
            False,
            zero,
            1,
            (False, True, False),
        )[1]

    stock = gradient()
    for row in switching.runnable_rows(OPS[1]):
        if row.startswith("direct"):
            with switching.accelerated(*OPS, row=row):
                hits = switching.hits(OPS[1])
                ours = gradient()
                assert hits.accelerated == 1
            assert torch.equal(ours.isfinite(), stock.isfinite())
