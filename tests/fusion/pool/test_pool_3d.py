"""Pooling of volumes and of sequences: bits, strides, gradients, errors, transforms."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import contract
import hypothesis
import pooled
import pytest
import switching
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

import pai_torchacc as ptac

FORWARD = ("max_pool3d", "avg_pool3d", "adaptive_avg_pool3d")
OPS = (*FORWARD, *(f"{op}_backward" for op in FORWARD))
EXAMPLES = hypothesis.settings(max_examples=60, deadline=None, derandomize=True)


def layout(x: Tensor, how: str) -> Tensor:
    match how:
        case "channels_last" if x.dim() == 5:
            return x.to(memory_format=torch.channels_last_3d)
        case "channels_last":
            return x[None].to(memory_format=torch.channels_last_3d)[0]
        case "transposed":
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "sliced":
            return torch.cat([x, x], -1)[..., : x.shape[-1]]
        case "expanded":
            return x[:, :1].expand(x.shape)
    return x


@st.composite
def inputs(draw: Any) -> tuple[Any, ...]:
    shape = [draw(st.integers(1, n)) for n in (3, 11, 9, 10, 37)]
    layouts = ["plain", "channels_last", "transposed", "sliced", "expanded"]
    return (
        shape[draw(st.integers(0, 1)) :],
        draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
        draw(st.sampled_from(layouts)),
        draw(st.booleans()),
    )


def off_and_on(function: Callable[[Tensor], Any], given: tuple[Any, ...]) -> None:
    stock = pooled.results(function, given, layout)
    for row in ("scalar", None):
        with switching.accelerated(*OPS, row=row):
            counts = [switching.hits(op) for op in OPS]
            ours = pooled.results(function, given, layout)
            if not isinstance(stock, str):
                seen = sum(h.accelerated + sum(h.forwarded.values()) for h in counts)
                assert seen >= 2
        contract.exactly(ours, stock)


@EXAMPLES
@hypothesis.given(inputs(), pooled.windows(3), st.booleans())
def test_max_pool3d(
    given: tuple[Any, ...], window: dict[str, Any], is_dilated: bool
) -> None:
    # Stock writes outside the gradient where a dilated window holds no tap.
    dilation = 2 if is_dilated and not any(window["padding"]) else 1
    if dilation == 2:
        window = {**window, "ceil_mode": False}
    # Of windows that are -inf all through see the test below.
    least = -1e30 if given[2] == "channels_last" else float("-inf")
    off_and_on(
        lambda x: F.max_pool3d(x.clamp(min=least), **window, dilation=dilation), given
    )


def test_the_index_of_infinities_lies_in_their_window() -> None:
    """With channels last that of stock lies in another slab, but for full vectors."""
    x = torch.full((2, 5, 4, 6, 6), float("-inf"))
    stock = F.max_pool3d(x, 2, return_indices=True)
    last = layout(x, "channels_last")
    for row in switching.runnable_rows("max_pool3d"):
        with switching.accelerated("max_pool3d", row=row):
            hits = switching.hits("max_pool3d")
            ours = F.max_pool3d(last, 2, return_indices=True)
            assert hits.accelerated == 1
        contract.exactly([t.contiguous() for t in ours], list(stock))


def test_gradients_without_a_batch_lie_as_stocks() -> None:
    x = torch.randn(5, 3, 6, 6, requires_grad=True)
    for how in ("plain", "channels_last", "sliced"):
        grad = layout(torch.randn(5, 1, 3, 3), how)
        (stock,) = torch.autograd.grad(F.max_pool3d(x, 2), x, grad)
        with switching.accelerated(*OPS):
            hits = switching.hits("max_pool3d_backward")
            (ours,) = torch.autograd.grad(F.max_pool3d(x, 2), x, grad)
            assert hits.accelerated == (how == "plain")
        contract.exactly(ours, stock)


@EXAMPLES
@hypothesis.given(
    inputs(), pooled.windows(3), st.booleans(), st.sampled_from([None, None, 3, -2])
)
def test_avg_pool3d(
    given: tuple[Any, ...], window: dict[str, Any], pad: bool, divisor: int | None
) -> None:
    off_and_on(
        lambda x: F.avg_pool3d(
            x, **window, count_include_pad=pad, divisor_override=divisor
        ),
        given,
    )


@EXAMPLES
@hypothesis.given(inputs(), pooled.tuples(3, 1, 9))
def test_adaptive_avg_pool3d(given: tuple[Any, ...], size: tuple[int, ...]) -> None:
    # torch makes a mean of a pool to one element.
    off_and_on(lambda x: F.adaptive_avg_pool3d(x, (*size[:2], size[2] + 1)), given)


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "max_pool3d": lambda x: F.max_pool3d(x, 3, 2, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 7),
}


@pytest.mark.parametrize("how", ["plain", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("op", FORWARD)
def test_is_accelerated(op: str, dtype: torch.dtype, how: str) -> None:
    """The shapes of networks run by every row, forward and backward."""
    given = ((2, 32, 8, 28, 28), dtype, how, False)
    is_served = (op == "max_pool3d" or dtype is not torch.bfloat16) and (
        op != "adaptive_avg_pool3d" or how == "plain"
    )
    stock = pooled.results(FUNCTIONS[op], given, layout)
    for row in switching.runnable_rows(op):
        back = row if row in switching.runnable_rows(f"{op}_backward") else "scalar"
        with (
            switching.accelerated(op, f"{op}_backward", row=back),
            switching.pins([op], row),
        ):
            hits, backs = switching.hits(op), switching.hits(f"{op}_backward")
            ours = pooled.results(FUNCTIONS[op], given, layout)
            if is_served:
                assert (hits.accelerated, backs.accelerated) == (1, 1), row
            else:
                assert hits.accelerated == 0
        contract.exactly(ours, stock)


def test_windows_of_every_size() -> None:
    """Longer than any table of taps, and rows too long for the columns' room."""
    with switching.accelerated(*OPS):
        hits = switching.hits("max_pool3d")
        for x, kernel in (
            (torch.randn(1, 2, 70, 5, 6), (66, 2, 2)),
            (torch.randn(1, 1, 2, 3, 9000), (2, 2, 3)),
            (torch.randn(1, 1, 2, 3, 200), (1, 2, 100)),
        ):
            ours = F.max_pool3d(x, kernel, 1, return_indices=True)
            average = F.avg_pool3d(x, kernel, 1)
            with ptac.disabled():
                contract.exactly(ours, F.max_pool3d(x, kernel, 1, return_indices=True))
                contract.exactly(average, F.avg_pool3d(x, kernel, 1))
        assert hits.accelerated == 3


WRONG: list[Callable[[Tensor], Any]] = [
    lambda x: F.max_pool3d(x, 0),
    lambda x: F.max_pool3d(x, 2, padding=2),
    lambda x: F.max_pool3d(x, 2, stride=0),
    lambda x: F.max_pool3d(x, 99),
    lambda x: F.max_pool3d(x, (1, 2)),
    lambda x: F.max_pool3d(x[0, 0], 2),
    lambda x: F.max_pool3d(x.int(), 2),
    lambda x: F.max_pool3d(x.half(), 2),
    lambda x: F.max_pool3d(x[:0], 2),
    lambda x: F.avg_pool3d(x, 2, divisor_override=0),
    lambda x: F.avg_pool3d(x, 2, padding=2),
    lambda x: F.avg_pool3d(x.long(), 2),
    lambda x: F.avg_pool3d(x.bfloat16(), 2),
    lambda x: F.avg_pool3d(x[:, :0], 2),
    lambda x: F.adaptive_avg_pool3d(x, (-1, 2, 2)),
    lambda x: F.adaptive_avg_pool3d(x, 0),
    lambda x: F.adaptive_avg_pool3d(x[0, 0], 2),
    lambda x: F.adaptive_avg_pool3d(x[:0], 2),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_and_oddities_are_torchs(number: int) -> None:
    x = torch.linspace(-1, 1, 1024).reshape(1, 2, 8, 8, 8)

    stock = contract.said(lambda: WRONG[number](x))
    with switching.accelerated(*OPS):
        ours = contract.said(lambda: WRONG[number](x))
    contract.exactly(ours, stock)


def test_indices_outside_the_volume_go_to_stock() -> None:
    """Our kernel gives the call back, and -1 is left out as stock does."""
    aten, x = torch.ops.aten, torch.randn(1, 2, 4, 4, 4)
    y, indices = F.max_pool3d(x, 2, return_indices=True)
    indices[0, 0, 0, 0, 0] = -1
    with switching.accelerated(*OPS):
        hits = switching.hits("max_pool3d_backward")
        ours = aten.max_pool3d_with_indices_backward(
            y, x, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, indices
        )
        assert hits.accelerated == 1
    stock = aten.max_pool3d_with_indices_backward(
        y, x, [2] * 3, [2] * 3, [0] * 3, [1] * 3, False, indices
    )
    contract.exactly(ours, stock)


def test_derivatives_and_transforms() -> None:
    x = torch.linspace(-1, 1, 2 * 216, dtype=torch.float64).sin().reshape(1, 2, 6, 6, 6)
    x.requires_grad_()
    batch = torch.randn(3, 2, 4, 5, 6)
    with switching.accelerated(*OPS):
        for function in (
            lambda x: F.max_pool3d(x, 2),
            lambda x: F.avg_pool3d(x, 3, 2, 1),
            lambda x: F.adaptive_avg_pool3d(x, 4),
        ):
            torch.autograd.gradcheck(function, x, fast_mode=True)
            torch.autograd.gradgradcheck(function, x, fast_mode=True)
            one_by_one = torch.stack([function(b) for b in batch])
            torch.testing.assert_close(torch.func.vmap(function)(batch), one_by_one)


def test_modules_autocast_copies_threads_and_toggling() -> None:
    model = nn.Sequential(
        nn.MaxPool3d(2, return_indices=False), nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(2)
    )
    x = torch.randn(4, 8, 16, 16, 16)
    stock = model(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(x)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in FORWARD]
        contract.exactly(copy.deepcopy(model)(x), stock)
        assert [h.accelerated for h in hits] == [1, 1, 1]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(x), stock_cast)
        results = switching.in_threads(lambda: model(x))
    assert all(torch.equal(y, stock) for y in results())


@pytest.mark.parametrize(
    "window", [(2, 2, 0, 1), (3, 2, 1, 1), (5, 3, 2, 1), (3, 1, 0, 2)]
)
def test_sequences_come_as_images(window: tuple[int, ...]) -> None:
    """With gradients torch pools a sequence as an image of one row."""
    kernel, stride, padding, dilation = window
    x = torch.randn(3, 7, 101, requires_grad=True)

    def run() -> list[Tensor]:
        y = F.max_pool1d(x, kernel, stride, padding, dilation)
        z = F.avg_pool1d(x, kernel, stride, padding)
        grads = torch.autograd.grad(y.sin().sum() + z.cos().sum(), x)
        return [y.detach(), z.detach(), *grads]

    stock = run()
    ops = [f"{kind}_pool2d{b}" for kind in ("max", "avg") for b in ("", "_backward")]
    with switching.accelerated(*ops):
        hits = [switching.hits(op) for op in ops]
        ours = run()
        assert [h.accelerated for h in hits] == [1, 1, 1, 1]
    contract.exactly(ours, stock)
