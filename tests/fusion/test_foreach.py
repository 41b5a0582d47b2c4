"""Averages of weights and unscaling, over lists of tensors: stock's bits, served."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import pytest
import switching
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_multi_avg_fn,
    get_swa_multi_avg_fn,
)

LERP, UNSCALE = "foreach_lerp", "unscale_grads"
SIZES: tuple[tuple[int, ...], ...] = (
    *((), (1,), (7,), (8,), (0, 3), (17, 40), (5, 3, 9, 11), (170_001,), (140_003,)),
)


def tensors(dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    found = [torch.randn(size, dtype=dtype) for size in SIZES]
    found[6] = found[6].to(memory_format=torch.channels_last)
    found[5] = found[5].t().contiguous().t()
    return found


def odd_numbers(dtype: torch.dtype) -> Tensor:
    odd = [float("inf"), float("-inf"), float("nan"), -0.0, 1e-40, 3.0]
    return torch.tensor(odd, dtype=dtype)


@pytest.mark.parametrize("row", switching.runnable_rows(LERP))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("weight", [0, 0.001, 0.5, 0.7, 1, -0.3, 2])
def test_lerp(weight: float, dtype: torch.dtype, row: str) -> None:
    def program() -> Any:
        averages, others = tensors(dtype), tensors(dtype, 1)
        averages[3][:6] = odd_numbers(dtype)
        others[7][:6] = odd_numbers(dtype)
        others[0] = averages[0]
        torch._foreach_lerp_(averages, others, weight)
        return averages, [a._version for a in averages]

    stock = program()
    with switching.accelerated(LERP, row=row):
        hits = switching.hits(LERP)
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (1, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize(
    ("average", "use_buffers"),
    [
        (get_ema_multi_avg_fn(0.9), False),
        (get_ema_multi_avg_fn(0.9), True),
        (get_swa_multi_avg_fn(), False),
    ],
)
def test_averaged_models(average: Any, use_buffers: bool) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))
        mean = AveragedModel(net, multi_avg_fn=average, use_buffers=use_buffers)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(4):
            opt.zero_grad()
            net(torch.randn(6, 5)).square().mean().backward()
            opt.step()
            mean.update_parameters(net)
        return list(mean.state_dict().values())

    stock = program()
    with switching.accelerated(LERP):
        hits = switching.hits(LERP)
        ours = program()
        assert hits.accelerated == 3
    contract.exactly(ours, stock)


@pytest.mark.parametrize("row", switching.runnable_rows(UNSCALE))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("factor", [1.0, 1 / 65536, 0.3, float("inf")])
@pytest.mark.parametrize("odd", [None, 0, 2, 3])
def test_unscale(odd: int | None, factor: float, dtype: torch.dtype, row: str) -> None:
    def program() -> Any:
        grads = tensors(dtype)
        if odd is not None:
            grads[7][169_990 + odd] = odd_numbers(dtype)[odd]
        found = torch.zeros(())
        torch._amp_foreach_non_finite_check_and_unscale_(
            grads, found, torch.tensor(factor)
        )
        return grads, found, [g._version > 0 for g in grads]

    stock = program()
    with switching.accelerated(UNSCALE, row=row):
        hits = switching.hits(UNSCALE)
        ours = program()
        assert (hits.accelerated, hits.forwarded) == (1, {})
    contract.exactly(ours, stock)


@pytest.mark.parametrize("breaks", [False, True])
def test_scalers(breaks: bool) -> None:
    def program() -> Any:
        torch.manual_seed(0)
        net = nn.Linear(30, 20)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(4):
            opt.zero_grad()
            scaler.scale(net(torch.randn(6, 30)).square().mean()).backward()
            if breaks and step == 2:
                net.weight.grad[1, 2] = float("inf")
            scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()
        return list(net.parameters()), scaler.get_scale()

    stock = program()
    with switching.accelerated(UNSCALE):
        hits = switching.hits(UNSCALE)
        ours = program()
        assert hits.accelerated == 4
    contract.exactly(ours, stock)


def clamp(a: list[Tensor]) -> None:
    torch._foreach_clamp_min_(a, 0.1)
    torch._foreach_clamp_max_(a, 0.9)


def lerp(a: list[Tensor]) -> None:
    torch._foreach_lerp_(a, [torch.ones_like(t) for t in a], 0.1)


def unscale(a: list[Tensor]) -> None:
    found, factor = torch.zeros(()), torch.tensor(0.5)
    torch._amp_foreach_non_finite_check_and_unscale_(a, found, factor)


CALLS = {"foreach_clamp": clamp, LERP: lerp, UNSCALE: unscale}


def with_gaps() -> list[Tensor]:
    return [torch.arange(10.0)[::2], torch.ones(3)]


def mixed() -> list[Tensor]:
    return [torch.arange(4.0), torch.arange(4.0).double()]


def in_half() -> list[Tensor]:
    return [torch.arange(4.0).bfloat16()]


def overlapping() -> list[Tensor]:
    """Two threads would write the same elements."""
    whole = torch.arange(300_000.0) / 300_000
    return [whole[:200_000], whole[100_000:]]


def empty_list() -> list[Tensor]:
    return []


def of_integers() -> list[Tensor]:
    return [torch.arange(4)]


@pytest.mark.parametrize(
    "make", [with_gaps, mixed, in_half, overlapping, empty_list, of_integers]
)
@pytest.mark.parametrize("op", CALLS)
def test_what_is_left_to_stock(op: str, make: Callable[[], list[Tensor]]) -> None:
    def program() -> Any:
        a = make()
        try:
            CALLS[op](a)
        except RuntimeError as error:
            return a, str(error).splitlines()[0]
        return a, ""

    stock = program()
    with switching.accelerated(op):
        hits = switching.hits(op)
        ours = program()
        if torch.get_num_threads() > 1 or make is not overlapping:
            assert hits.accelerated == 0
    contract.exactly(ours, stock)


@pytest.mark.parametrize("op", CALLS)
def test_under_grad_and_modes(op: str) -> None:
    """Torch's own autograd sees the call, and stops it where it would."""

    def program() -> Any:
        leaf = torch.ones(5, requires_grad=True)
        try:
            CALLS[op]([leaf])
        except RuntimeError as error:
            said = str(error).splitlines()[0]
        else:
            said = ""
        inner = torch.ones(5, requires_grad=True)
        y = inner * 2
        if op != UNSCALE:
            CALLS[op]([y])
            y.square().sum().backward()
        with torch.autocast("cpu"), torch.no_grad():
            z = torch.arange(9.0)
            CALLS[op]([z])
        return said, leaf.detach(), inner.grad, z

    stock = program()
    with switching.accelerated(op):
        ours = program()
    contract.exactly(ours, stock)


@pytest.mark.parametrize("op", CALLS)
def test_checked_by_stock(op: str) -> None:
    def program() -> list[Tensor]:
        a = tensors(torch.float32)
        CALLS[op](a)
        return a

    stock = program()
    with switching.accelerated(op, verify=1):
        hits = switching.hits(op)
        ours = program()
        assert hits.accelerated >= 1
    contract.exactly(ours, stock)


@pytest.mark.parametrize("op", CALLS)
def test_at_any_number_of_threads_and_off_again(op: str) -> None:
    def program() -> list[Tensor]:
        a = tensors(torch.float32)
        CALLS[op](a)
        return a

    before = torch.get_num_threads()
    try:
        for n_threads in (1, 2, 3):
            torch.set_num_threads(n_threads)
            stock = program()
            with switching.accelerated(op):
                hits = switching.hits(op)
                ours = program()
                n = hits.accelerated
                assert n >= 1
            contract.exactly(ours, stock)
            contract.exactly(program(), stock)
            assert hits.accelerated == n
    finally:
        torch.set_num_threads(before)
