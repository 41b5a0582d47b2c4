"""Pooling behind torch's functions and modules: bits, strides, gradients, errors."""

from __future__ import annotations

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

FORWARD = {"max": "max_pool2d", "avg": "avg_pool2d", "adaptive": "adaptive_avg_pool2d"}


def layout(x: Tensor, how: str) -> Tensor:
    match how:
        case "channels_last" if x.dim() == 4:
            return x.to(memory_format=torch.channels_last)
        case "transposed":
            return x.transpose(-1, -2).contiguous().transpose(-1, -2)
        case "sliced":
            return torch.cat([x, x], -1)[..., : x.shape[-1]]
        case _:
            return x


@st.composite
def inputs(draw: Any) -> tuple[Any, ...]:
    shape = [draw(st.integers(1, n)) for n in (3, 19, 21, 37)]
    return (
        shape[draw(st.integers(0, 1)) :],
        draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16])),
        draw(st.sampled_from(["plain", "channels_last", "transposed", "sliced"])),
        draw(st.booleans()),
    )


def off_and_on(
    function: Callable[[Tensor], Any], given: tuple[Any, ...], must_count: bool = True
) -> None:
    stock = pooled.results(function, given, layout)
    with switching.accelerated(*FORWARD.values(), *BACKWARD):
        counts = [switching.hits(op) for op in (*FORWARD.values(), *BACKWARD)]
        ours = pooled.results(function, given, layout)
        if must_count and not isinstance(stock, str):
            assert sum(h.accelerated + sum(h.forwarded.values()) for h in counts) >= 2
    contract.exactly(ours, stock)


BACKWARD = [f"{op}_backward" for op in FORWARD.values()]
EXAMPLES = hypothesis.settings(max_examples=100, deadline=None, derandomize=True)


@EXAMPLES
@hypothesis.given(inputs(), pooled.windows(2), st.integers(1, 2), st.booleans())
def test_max_pool2d(
    given: tuple[Any, ...], window: dict[str, Any], dilation: int, with_indices: bool
) -> None:
    off_and_on(
        lambda x: F.max_pool2d(
            x, **window, dilation=dilation, return_indices=with_indices
        ),
        given,
    )


@EXAMPLES
@hypothesis.given(
    inputs(), pooled.windows(2), st.booleans(), st.sampled_from([None, None, 3, -2])
)
def test_avg_pool2d(
    given: tuple[Any, ...], window: dict[str, Any], pad: bool, divisor: int | None
) -> None:
    off_and_on(
        lambda x: F.avg_pool2d(
            x, **window, count_include_pad=pad, divisor_override=divisor
        ),
        given,
    )


@EXAMPLES
@hypothesis.given(inputs(), st.tuples(*[st.integers(1, 9) | st.none()] * 2))
def test_adaptive_avg_pool2d(
    given: tuple[Any, ...], size: tuple[int | None, int | None]
) -> None:
    # torch makes a mean of a pool to one element, and x itself of one to its size.
    height, width = (size[i] or given[0][i - 2] for i in range(2))
    off_and_on(
        lambda x: F.adaptive_avg_pool2d(x, size),
        given,
        must_count=(height, width) != (1, 1),
    )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("kind", FORWARD)
def test_is_accelerated(kind: str, dtype: torch.dtype, channels_last: bool) -> None:
    """The shapes of networks run by every row, forward and backward."""
    op = FORWARD[kind]
    given = (
        (4, 32, 28, 28),
        dtype,
        "channels_last" if channels_last else "plain",
        False,
    )
    function = {
        "max": lambda x: F.max_pool2d(x, 3, 2, 1),
        "avg": lambda x: F.avg_pool2d(x, 2),
        "adaptive": lambda x: F.adaptive_avg_pool2d(x, 7),
    }[kind]
    stock = pooled.results(function, given, layout)
    for row in switching.runnable_rows(op):
        with switching.accelerated(op, f"{op}_backward", row=row):
            hits, back = switching.hits(op), switching.hits(f"{op}_backward")
            ours = pooled.results(function, given, layout)
            if dtype is torch.bfloat16 and kind != "max":
                assert hits.accelerated + sum(hits.forwarded.values()) == 1
            else:
                assert (hits.accelerated, back.accelerated) == (1, 1), row
        contract.exactly(ours, stock)


MODULES = [
    (nn.MaxPool2d(2), "max_pool2d"),
    (nn.MaxPool2d(3, 2, 1, ceil_mode=True), "max_pool2d"),
    (nn.AvgPool2d(2), "avg_pool2d"),
    (nn.AdaptiveAvgPool2d((3, 5)), "adaptive_avg_pool2d"),
]


@pytest.mark.parametrize(("module", "op"), MODULES, ids=str)
def test_modules(module: nn.Module, op: str) -> None:
    given = ((2, 3, 17, 19), torch.float32, "plain", False)
    stock = pooled.results(module, given, layout)
    with switching.accelerated(op):
        hits = switching.hits(op)
        ours = pooled.results(module, given, layout)
        assert hits.accelerated == 1
    contract.exactly(ours, stock)


WRONG: list[Callable[[Tensor], Any]] = [
    lambda x: F.max_pool2d(x, 0),
    lambda x: F.max_pool2d(x, 2, padding=2),
    lambda x: F.max_pool2d(x, 2, stride=0),
    lambda x: F.max_pool2d(x, 2, dilation=0),
    lambda x: F.max_pool2d(x, 99),
    lambda x: F.max_pool2d(x, (1, 2, 3)),
    lambda x: F.max_pool2d(x[0, 0, 0], 2),
    lambda x: F.max_pool2d(x.int(), 2),
    lambda x: F.avg_pool2d(x, 2, divisor_override=0),
    lambda x: F.avg_pool2d(x, 2, padding=2),
    lambda x: F.avg_pool2d(x, 99),
    lambda x: F.avg_pool2d(x.long(), 2),
    lambda x: F.adaptive_avg_pool2d(x, (-1, 2)),
    lambda x: F.adaptive_avg_pool2d(x[0, 0], 2),
    lambda x: F.adaptive_avg_pool2d(x, 0),
    lambda x: F.max_pool2d(x[:0], 2),
    lambda x: F.avg_pool2d(x[:, :0], 2),
    lambda x: F.max_pool2d(x.half(), 2),
    lambda x: F.avg_pool2d(x.to(torch.complex64), 2),
]


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_errors_and_oddities_are_torchs(number: int) -> None:
    x = torch.linspace(-1, 1, 128).reshape(1, 2, 8, 8)

    stock = contract.said(lambda: WRONG[number](x))
    with switching.accelerated(*FORWARD.values()):
        ours = contract.said(lambda: WRONG[number](x))
    contract.exactly(ours, stock)


def test_out_variants_and_double_backward() -> None:
    x = torch.linspace(-1, 1, 72, dtype=torch.float64).sin().reshape(1, 2, 6, 6)
    x.requires_grad_()
    with switching.accelerated(*FORWARD.values(), *BACKWARD):
        for function in (
            lambda x: F.max_pool2d(x, 2),
            lambda x: F.avg_pool2d(x, 3, 2, 1),
            lambda x: F.adaptive_avg_pool2d(x, 4),
        ):
            torch.autograd.gradcheck(function, x)
            torch.autograd.gradgradcheck(function, x)
