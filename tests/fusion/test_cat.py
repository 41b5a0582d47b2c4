"""Tensors put beside each other, with stock's bits, strides and errors."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor

import pai_torchacc as ptac

OP = "cat"

rows = pytest.mark.parametrize("row", switching.runnable_rows(OP))

numbers = contract.draw_with_extremes


def compare(call: Callable[[], Any]) -> None:
    with ptac.disabled():
        stock = call()
    hits = switching.hits(OP)
    ours = call()
    contract.exactly(ours, stock)
    assert hits.accelerated == 1, hits


@pytest.mark.parametrize("n", [2, 3, 4, 5, 10])
@rows
def test_stacks(row: str, n: int) -> None:
    with switching.accelerated(OP, row=row):
        for sizes in ((1,), (7,), (33, 5), (2, 3, 40), (4, 9000)):
            tensors = [numbers(*sizes) + i for i in range(n)]
            compare(partial(torch.stack, tensors, -1))
            if len(sizes) > 1:
                compare(partial(torch.stack, [t.mT.contiguous() for t in tensors], -2))


@rows
def test_runs_and_parts(row: str) -> None:
    x = numbers(3, 4, 5, 48)
    with switching.accelerated(OP, row=row):
        for pieces in (
            [x[..., :1], x],
            [-x[..., 24:], x[..., :24]],
            [x[..., 24:], x[..., :24], x[..., 3:4]],
            [x[:1], x[1:2, :, :, :]],
            [x[0, 0, 0], x[0, 0, 1, :7]],
            list(x.unbind(-2)),
        ):
            for dim in {
                -1,
                len(pieces[0].shape) - 1,
                0 if pieces[0].dim() == 1 else -1,
            }:
                compare(partial(torch.cat, pieces, dim))
        compare(partial(torch.cat, [x[:, :1], x[:, 2:]], 1))
        compare(partial(torch.cat, [x[..., 0, :], x[..., 2, :]], 2))
        compare(partial(torch.stack, [torch.tensor(float(i)) for i in range(3)]))
        compare(partial(torch.hstack, [x[0, 0], x[0, 1]]))


@rows
def test_threads(row: str) -> None:
    before = torch.get_num_threads()
    x = numbers(64, 700, 6)
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            with switching.accelerated(OP, row=row):
                compare(partial(torch.cat, [x, x[..., :2]], -1))
                compare(partial(torch.stack, [x, x + 1, x], -1))
    finally:
        torch.set_num_threads(before)


def others() -> list[Callable[[], Any]]:
    """Calls that are stock's, and its errors."""
    x = numbers(2, 3, 6, 7)
    last = x.to(memory_format=torch.channels_last)
    long = torch.zeros(3, 1100)
    return [
        lambda: torch.cat([x], 1),
        lambda: torch.cat([x] * 11, 1),
        lambda: torch.cat([], 0),
        lambda: torch.cat([x, x], 4),
        lambda: torch.cat([x, x], -5),
        lambda: torch.cat([x, x[:, :, :, :3]], 1),
        lambda: torch.cat([x, x[0]], 0),
        lambda: torch.cat([x, torch.zeros(0)], 0),
        lambda: torch.cat([x, x[:, :0]], 1),
        lambda: torch.cat([x, x.double()], -1),
        lambda: torch.cat([x.double(), x.double()], -1),
        lambda: torch.cat([x, x.int()], -1),
        lambda: torch.cat([last, last], 1),
        lambda: torch.cat([x, last], -1),
        lambda: torch.cat([x.mT, x.mT], -1),
        lambda: torch.cat([x[:, :1].expand(x.shape), x], -1),
        lambda: torch.cat([long, long], 1),
        lambda: torch.cat([torch.tensor(1.0)] * 3),
        lambda: torch.stack([x, x[:1]], -1),
        lambda: torch.cat([x[:, :1], x[:, 2:3]], -1),
        lambda: torch.cat([x, x], -1, out=torch.empty(2, 3, 6, 14)),
    ]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]
    stock = contract.said(call)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        contract.exactly(contract.said(call), stock)
        assert hits.accelerated == 0, hits


def test_gradients_and_transforms() -> None:
    x, y = (numbers(4, 6, n).nan_to_num(0, 1, 1) for n in (5, 3))

    def run() -> list[Tensor]:
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        z = torch.cat([a, b, a[..., :1]], -1)
        w = torch.stack([a, a * 2], -1)
        found = torch.autograd.grad(z.square().sum() + w.pow(3).sum(), (a, b))
        joined = partial(torch.cat, dim=-1)
        compiled = torch.compile(joined, backend="eager", dynamic=True)
        vmapped = torch.vmap(lambda a, b: torch.cat([a, b], -1))(x, y)
        with torch.inference_mode():
            inside = [torch.cat([x, torch._neg_view(y)], -1), compiled([x, y])]
        return [z.detach(), w.detach(), *found, vmapped, *inside]

    with ptac.disabled():
        stock = run()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        contract.exactly(run(), stock)
        assert hits.accelerated >= 4, hits


def test_program_changes_inputs_afterwards() -> None:
    """Results are new memory, as stock's."""
    with switching.accelerated(OP):
        for dim, n in itertools.product((0, -1), (2, 3)):
            parts = [torch.full((3, 2), float(i)) for i in range(n)]
            joined = torch.cat(parts, dim)
            kept = joined.clone()
            for part in parts:
                part.zero_()
            contract.exactly(joined, kept)
