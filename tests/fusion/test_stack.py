"""Tensors stacked along a new last dimension, behind torch.stack()."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor

import pai_torchacc as ptac

OP = "stack"
SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-40]

rows = pytest.mark.parametrize("row", switching.runnable_rows(OP))


def tensors(n: int, *sizes: int) -> list[Tensor]:
    torch.manual_seed(n)
    made = [torch.randn(sizes) for _ in range(n)]
    for t in made:
        k = min(len(SPECIAL), t.numel())
        t.view(-1)[:k] = torch.tensor(SPECIAL)[:k]
    return made


@pytest.mark.parametrize("threads", [1, 2])
@rows
def test_stocks_bits(row: str, threads: int) -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        with switching.accelerated(OP, row=row):
            for n in range(2, 9):
                for sizes in ((1,), (15,), (16,), (33, 7), (2, 3, 1111), (40000,)):
                    given = tensors(n, *sizes)
                    with ptac.disabled():
                        stock = torch.stack(given, -1)
                    hits = switching.hits(OP)
                    ours = torch.stack(given, dim=len(sizes))
                    assert hits.accelerated == 1
                    contract.exactly(ours, stock)
                    assert ours.stride() == stock.stride()
    finally:
        torch.set_num_threads(before)


@rows
def test_views_of_the_same(row: str) -> None:
    """The same tensor twice, parts of one, and none of their own memory is written."""
    x = torch.randn(6, 50)
    lists: list[list[Tensor]] = [[x, x], [x[0], x[1], x[0]], list(x)]
    for given in lists:
        stock = torch.stack(given, -1)
        with switching.accelerated(OP, row=row):
            hits = switching.hits(OP)
            contract.exactly(torch.stack(given, -1), stock)
            assert hits.accelerated == 1


def others() -> list[Callable[[], Any]]:
    """Calls that are stock's, and its errors."""
    x, y = tensors(2, 4, 6)
    return [
        lambda: torch.stack([x, y]),
        lambda: torch.stack([x, y], 1),
        lambda: torch.stack([x], -1),
        lambda: torch.stack([x] * 9, -1),
        lambda: torch.stack([x, y[:, :5]], -1),
        lambda: torch.stack([x, y.double()], -1),
        lambda: torch.stack([x.double(), y], -1),
        lambda: torch.stack([x.int(), y.int()], -1),
        lambda: torch.stack([x.t(), y.t()], -1),
        lambda: torch.stack([x[:, ::2], y[:, ::2]], -1),
        lambda: torch.stack([x[:1].expand(4, 6), y], -1),
        lambda: torch.stack([x[:0], y[:0]], -1),
        lambda: torch.stack([x, y], 3),
        lambda: torch.stack([x, y], -4),
        lambda: torch.stack([], -1),
        lambda: torch.stack([x, y], -1, out=torch.empty(4, 6, 2)),
        lambda: torch.stack([x, y.to("meta")], -1),
    ]


@pytest.mark.parametrize("number", range(len(others())))
def test_what_is_stocks(number: int) -> None:
    call = others()[number]

    stock = contract.said(call)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        contract.exactly(contract.said(call), stock)
        assert hits.accelerated == 0


def test_derivatives_transforms_and_modes() -> None:
    x = torch.linspace(-3, 3, 24).reshape(4, 6)

    def f(x: Tensor) -> Tensor:
        return torch.stack([x.sin(), x.cos(), x], -1).pow(3).sum()

    def all_of_them() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        (grad,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
        found = [grad.detach(), *torch.autograd.grad(grad.square().sum(), leaf)]
        found.append(torch.func.vmap(torch.func.grad(f))(x))
        found.append(torch.view_as_complex(torch.stack([x, -x], -1)).abs())
        found.append(torch.stack([torch.tensor(1.0), torch.tensor(2.0)], -1))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(torch.stack([x, x.bfloat16()], -1))
        with torch.inference_mode():
            found.append(torch.stack([x, x], -1))
        return found

    stock = all_of_them()
    with switching.accelerated(OP, verify=1):
        hits = switching.hits(OP)
        contract.exactly(all_of_them(), stock)
        assert hits.accelerated >= 5


def test_threads_and_toggling() -> None:
    given = tensors(4, 30, 40)
    stock = torch.stack(given, -1)
    found: list[Tensor] = []

    def run() -> None:
        found.extend(torch.stack(given, -1) for _ in range(50))

    for _ in range(3):
        with switching.accelerated(OP):
            threads = [threading.Thread(target=run) for _ in range(3)]
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
    assert len(found) == 450
    contract.exactly(found, [stock] * 450)
