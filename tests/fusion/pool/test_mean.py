"""Means over dimensions that follow each other in memory: ``x.mean(dim)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac

OP = "mean"
NHWC, NDHWC = torch.channels_last, torch.channels_last_3d

rows = pytest.mark.parametrize("row", switching.runnable_rows(OP))

Size = tuple[int, ...]
Dims = tuple[int, ...] | int | None

CALLS: list[tuple[Size, Dims, Any]] = [
    ((1, 96, 7, 7), (2, 3), None),
    ((3, 37, 7, 7), (-1, -2), None),
    ((2, 5, 14, 14), (3, 2), None),
    ((2, 3, 33, 65), (2, 3), None),
    ((1, 2, 90, 91), (2, 3), None),
    ((1, 96, 7, 7), (2, 3), NHWC),
    ((2, 100, 14, 15), (-2, -1), NHWC),
    ((2, 5, 33, 34), (2, 3), NHWC),
    ((2, 70, 3, 5, 4), (2, 3, 4), NDHWC),
    ((2, 6, 3, 5, 4), (2, 3, 4), None),
    ((2, 6, 3, 5, 4), (1, 2), None),
    ((2, 6, 5, 4), 1, NHWC),
    ((8, 50, 49), 2, None),
    ((8, 50, 49), 1, None),
    ((300, 70), 0, None),
    ((300, 70), (), None),
    ((300, 70), None, None),
    ((5, 1, 7), 1, None),
    ((4, 9, 1, 1), (2, 3), None),
    ((1, 1, 7), 2, None),
    ((1,), 0, None),
    ((17,), -1, None),
]


def draw(sizes: Size, layout: Any, dtype: torch.dtype) -> Tensor:
    x = contract.draw(*sizes, dtype=dtype) + 1
    return x if layout is None else x.to(memory_format=layout)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("sizes", "dims", "layout"), CALLS)
@rows
def test_means_are_close(
    row: str, sizes: Size, dims: Dims, layout: Any, keeps: bool
) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = draw(sizes, layout, dtype)
        return {"mean": torch.mean(x, dims, keeps)}

    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        contract.hold(case)
        assert hits.accelerated >= 1, hits
        assert set(hits.forwarded) <= {"dtype", "disabled in this thread"}, hits


@rows
def test_equal_elements_do_not_drift(row: str) -> None:
    """They round the same way each time: long chains of them lose more than stock's."""

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = (torch.full((2, 3, 120, 130), 0.1) + torch.rand(2, 3, 1, 1)).to(dtype)
        nhwc = x.to(memory_format=NHWC)
        return {"rows": x.mean((2, 3)), "columns": nhwc.mean((2, 3))}

    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        contract.hold(case)
        assert hits.accelerated >= 2, hits


@pytest.mark.parametrize("layout", [None, NHWC])
@rows
def test_what_is_not_finite_is_as_stocks(row: str, layout: Any) -> None:
    x = torch.randn(1, 21, 9, 9)
    for channel, values in enumerate(
        (
            (torch.inf,),
            (-torch.inf,),
            (torch.inf, -torch.inf),
            (torch.nan,),
            (3e38,) * 9,
        )
    ):
        x[0, 4 * channel + 1].view(-1)[: len(values)] = torch.tensor(values)
    x[0, 2] = -0.0
    if layout is not None:
        x = x.to(memory_format=layout)
    with ptac.disabled():
        stock = x.mean((2, 3))
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        torch.testing.assert_close(x.mean((2, 3)), stock, equal_nan=True)
        assert hits.accelerated == 1, hits
    assert stock.isnan().sum() == 2 and stock.isinf().sum() == 3


@rows
def test_threads_do_not_change_bits(row: str) -> None:
    before = torch.get_num_threads()
    every = [
        draw((7, 333, 49), None, torch.float32),
        draw((3, 31, 60, 60), None, torch.float32).view(3, 31, 3600),
        draw((3, 900, 100), None, torch.float32).transpose(1, 2).contiguous(),
    ]
    try:
        with switching.accelerated(OP, row=row):
            found = []
            for n in (1, 2, 3):
                torch.set_num_threads(n)
                hits = switching.hits(OP)
                found.append([x.mean(dim) for x in every for dim in (1, 2)])
                assert hits.accelerated == 2 * len(every), hits
    finally:
        torch.set_num_threads(before)
    for others in found[1:]:
        contract.exactly(others, found[0])


def test_a_long_row_is_shared_by_stocks_threads() -> None:
    before = torch.get_num_threads()
    x = torch.randn(1, 100_000)
    try:
        with switching.accelerated(OP):
            for n, accelerated in ((1, 1), (2, 0)):
                torch.set_num_threads(n)
                hits = switching.hits(OP)
                x.mean(1)
                assert hits.accelerated == accelerated, (n, hits)
                assert hits.forwarded == ({} if accelerated else {"shape": 1}), hits
    finally:
        torch.set_num_threads(before)


def others() -> list[Callable[[], Any]]:
    """Calls that are stock's, and its errors."""
    x = torch.randn(2, 3, 6, 7)
    return [
        lambda: x.double().mean((2, 3)),
        lambda: x.bfloat16().mean((2, 3)),
        lambda: x.long().mean((2, 3)),
        lambda: x.long().mean((2, 3), dtype=torch.float32),
        lambda: x.cfloat().mean((2, 3)),
        lambda: x.mean((2, 3), dtype=torch.float64),
        lambda: x.mean((2, 3), dtype=torch.bfloat16),
        lambda: x.mean((2, 3), dtype=torch.int64),
        lambda: x[:0].mean((2, 3)),
        lambda: x[:, :, :0].mean((2, 3)),
        lambda: torch.tensor(2.5).mean(0),
        lambda: torch.tensor(2.5).mean(),
        lambda: x.mean((1, 3)),
        lambda: x.mean((0, 2, 3)),
        lambda: x.to(memory_format=NHWC).mean((1, 2)),
        lambda: x.transpose(2, 3).mean(3),
        lambda: x[:, 1:].mean((2, 3)),
        lambda: x[..., ::2].mean((2, 3)),
        lambda: x.mean((2, 2)),
        lambda: x.mean((2, -2)),
        lambda: x.mean((2, 4)),
        lambda: x.mean(-5),
    ]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]
    with ptac.disabled():
        stock = contract.said(call)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        ours = contract.said(call)
        assert hits.accelerated == 0, hits
    if isinstance(stock, Tensor):
        torch.testing.assert_close(ours, stock, equal_nan=True)
        assert ours.stride() == stock.stride()
    else:
        assert ours == stock


def test_out_is_stocks() -> None:
    x, y = torch.randn(4, 50, 49), torch.empty(4, 50)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        torch.mean(x, 2, out=y)
        assert hits.accelerated == 0
        torch.testing.assert_close(y, x.mean(2))
        assert hits.accelerated == 1


def test_dtype_of_x_may_be_named() -> None:
    x = torch.randn(4, 50, 49)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert torch.equal(x.mean(2, dtype=torch.float32), x.mean(2))
        assert hits.accelerated == 2, hits


@pytest.mark.parametrize("layout", [None, NHWC])
def test_gradients_are_stocks(layout: Any) -> None:
    """What the kernel gives is below autograd."""
    x = torch.randn(2, 24, 7, 7)
    if layout is not None:
        x = x.to(memory_format=layout)

    def gradient() -> tuple[Tensor, Tensor]:
        leaf = x.detach().requires_grad_()
        y = F.adaptive_avg_pool2d(leaf, 1)
        (grad,) = torch.autograd.grad(y, leaf, torch.arange(48.0).view(2, 24, 1, 1))
        return y.detach(), grad

    with ptac.disabled():
        y, grad = gradient()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        our_y, our_grad = gradient()
        assert hits.accelerated == 1, hits
        double = torch.randn(1, 2, 3, 3, dtype=torch.double, requires_grad=True)
        pool = partial(torch.mean, dim=(2, 3))
        assert torch.autograd.gradgradcheck(lambda x: pool(x).sin(), (double,))
    torch.testing.assert_close(our_y, y)
    assert our_y.stride() == y.stride()
    contract.exactly(our_grad, grad)


@pytest.mark.parametrize("hidden", ["", "c10_find_operator"])
def test_torchs_kernel_may_be_missing(hidden: str) -> None:
    """Calls that are stock's then go through ``out``, with what they were given."""
    program = """
import torch, switching
x = torch.randn(2, 3, 6, 7).transpose(2, 3)
calls = [
    lambda: x.mean((2, 3)), lambda: x.mean(-1, True), lambda: x.mean(),
    lambda: x.mean(()), lambda: x.mean(1, dtype=torch.float64),
    lambda: x.mean(1, True, dtype=torch.bfloat16), lambda: x.double().mean(2),
    lambda: x.long().mean(2, dtype=torch.float32),
]
stock = [call() for call in calls]
with switching.accelerated("mean"):
    hits = switching.hits("mean")
    ours = [call() for call in calls]
    assert sum(hits.forwarded.values()) == len(calls), hits
for a, b in zip(ours, stock):
    assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
"""
    switching.python(
        program, PTAC_HIDE_SYMBOLS=",".join(filter(None, ("cpu_mean", hidden)))
    )
