"""Random convolutions of many kinds of values, held to the level close.

A fixed number of cases by a fixed seed: ``PTAC_TEST_SEED`` repeats another.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

SEED = int(os.environ.get("PTAC_TEST_SEED", "7"))
CASES = {"2x2": 100, "4x2": 200, "4x4_weight": 60, "2x2_of_5x5": 500}
"""Of each kind of tiles. Those of 5x5 kernels are nearest to the contract's bounds."""

Draw = Callable[[tuple[int, ...]], Tensor]


def integers(low: int, high: int) -> Draw:
    return lambda s: torch.randint(low, high, s).float()


def but_one(w: Tensor) -> Tensor:
    w.view(-1)[-1] += 0.3
    return w


IMAGES: list[Draw] = [
    torch.randn,
    torch.rand,
    lambda s: torch.randn(s).relu(),
    lambda s: torch.randn(s) + 3,
    lambda s: torch.randint(0, 256, s) / 255,
    lambda s: torch.where(torch.rand(s) < 0.45, torch.randn(s), 0),
    integers(0, 256),
    integers(-4, 5),
    integers(0, 2),
]
WEIGHTS: list[Draw] = [
    lambda s: torch.randn(s) * math.sqrt(2 / math.prod(s[1:])),
    torch.rand,
    lambda s: 0.04 * (1 + 0.01 * torch.randn(s)),
    lambda s: but_one(torch.randint(-4, 5, s).float()),
    lambda s: but_one(torch.rand(*s[:2], 1, 1).expand(s).clone()),
    lambda s: torch.randn(s).bfloat16().float(),
    lambda s: torch.where(torch.rand(s) < 0.1, torch.randn(s), 0),
    lambda s: torch.linspace(-0.7, 0.7, s[3]) * torch.randn(*s[:2], 1, 1).expand(s),
    lambda s: torch.randint(-1, 2, s) * torch.rand(s[0], 1, 1, 1),
    lambda s: torch.randint(-4, 5, s) + 0.001 * torch.randn(s),
    integers(-5000, 5001),
]


def random_case(r: random.Random, tiles: str) -> tuple[Tensor, Tensor, Tensor, int]:
    """Images, weights, the output's gradient, padding."""
    n, c, k = r.choice([1, 2, 4]), r.choice([4, 6, 8, 16, 32]), r.choice([8, 16, 32])
    h, w = r.choice([6, 7, 8, 12, 16, 20]), r.choice([6, 8, 9, 12, 17])
    padding, size = r.choice([0, 2, 2, 4]), 5
    if "5x5" not in tiles:
        c, padding, size = r.choice([c, 1, 3, 64]), padding // 2, 3
    if "weight" in tiles:
        n *= 4  # it takes sums of many terms only
    torch.manual_seed(r.randrange(1 << 30))
    x = r.choice(IMAGES)((n, c, h, w)).float()
    weight = r.choice(WEIGHTS)((k, c, size, size)).float().contiguous()
    more = 2 * padding - size + 1
    grad = r.choice(IMAGES)((n, k, h + more, w + more)).float()
    return x, weight, grad, padding


def results(x: Tensor, w: Tensor, grad: Tensor, padding: int) -> dict[str, Tensor]:
    pair = [padding, padding]
    grads = torch.ops.aten.convolution_backward(
        grad, x, w, None, [1, 1], pair, [1, 1], False, [0, 0], 1, (True, True, False)
    )
    return {
        "y": F.conv2d(x, w, padding=padding),
        "x": grads[0],
        "weight": grads[1],
    }


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("tiles", CASES)
def test_tiles(tiles: str, threads: int) -> None:
    ops = ("conv2d_backward",) if "weight" in tiles else ("conv2d", "conv2d_backward")
    row = f"winograd_{tiles}_{switching.best_row('conv2d').rsplit('_', 1)[1]}"
    if row not in switching.runnable_rows(ops[0]):
        pytest.skip("this CPU has no row of tiles")
    r, before = random.Random(SEED + threads), torch.get_num_threads()
    cases = CASES[tiles] // 2
    torch.set_num_threads(threads)
    try:
        hits = switching.hits(ops[0])
        for i in range(cases):
            case = random_case(r, tiles)
            exact = results(*(t.double() for t in case[:3]), case[3])
            stock = results(*case)
            with switching.accelerated(*ops, row=row):
                ours = results(*case)
            for name in ours:
                if exact[name].numel() < contract.POOLED:
                    continue
                where = f"{name} of case {i}, PTAC_TEST_SEED={SEED}, {threads} threads"
                contract.judge(where, [ours[name]], [stock[name]], [exact[name]])
        assert cases // 8 < hits.accelerated < cases
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("row", switching.runnable_rows("conv2d_backward"))
def test_integers_of_gradients_of_weights_are_exact(row: str) -> None:
    """Images and gradients of integers: stock's sums have no error, and so no ours."""
    size = 5 if "5x5" in row else 3
    torch.manual_seed(0)
    x, grad = (torch.randint(-4, 5, (8, 24, 24, 24)).float() for _ in range(2))
    w = torch.randn(24, 24, size, size)
    padding = size // 2
    exact = results_of_weight(x.double(), w.double(), grad.double(), padding)
    with switching.accelerated("conv2d_backward", row=row):
        ours = results_of_weight(x, w, grad, padding)
    assert torch.equal(ours.double(), exact)


def results_of_weight(x: Tensor, w: Tensor, grad: Tensor, padding: int) -> Tensor:
    pair = [padding, padding]
    return torch.ops.aten.convolution_backward(
        grad, x, w, None, [1, 1], pair, [1, 1], False, [0, 0], 1, (False, True, False)
    )[1]
