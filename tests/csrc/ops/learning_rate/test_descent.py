"""Sums of gradient times direction, against float64."""

from __future__ import annotations

from array import array

import pytest
import torch
from torch import Tensor

from pai_torchacc import _C, _host

_host.learnt()

NUMBERS = (0.7, 0.3, 0.9, 0.1, 1e-8)
SIZES = [(0,), (1,), (7,), (8,), (130,), (16384,), (16385,), (3, 50001), (2, 3, 4, 5)]


def reference(
    grads: list[Tensor],
    averages: list[Tensor] | None,
    squares: list[Tensor] | None,
    scale: float,
    numbers: tuple[float, ...] | None,
) -> float:
    total = 0.0
    for i, grad in enumerate(grads):
        g = grad.double() * scale
        direction = g
        if numbers:
            m = averages[i].double() * numbers[0] if averages else 0
            v = squares[i].double() * numbers[2] if squares else 0
            root = (v + g * g * numbers[3]).sqrt()
            direction = (m + g * numbers[1]) / (root + numbers[4])
        total += (g * direction).sum().item()
    return total


def tensors(dtype: torch.dtype, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype) for s in SIZES]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("numbers", [None, NUMBERS])
@pytest.mark.parametrize("scale", [1.0, 2.0**-16])
@pytest.mark.parametrize("with_states", [False, True])
def test_sums(
    dtype: torch.dtype,
    numbers: tuple[float, float, float, float, float] | None,
    scale: float,
    with_states: bool,
) -> None:
    grads = tensors(dtype, 0)
    averages = tensors(dtype, 1) if with_states and numbers else None
    squares = [t.square() for t in tensors(dtype, 2)] if averages else None
    found = _C.descent_sum(grads, averages, squares, scale, numbers)
    expected = reference(grads, averages, squares, scale, numbers)
    # Terms of float32 are rounded a few times each; their errors mostly cancel.
    bound = 1e-6 if dtype is torch.float32 else 1e-12
    assert found == pytest.approx(expected, rel=bound)


def test_threads_change_nothing() -> None:
    grads = tensors(torch.float32, 0)
    before = torch.get_num_threads()
    found = set()
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.add(_C.descent_sum(grads, None, None, 1.0, None))
            found.add(_C.descent_sum(grads, grads, None, 1.0, NUMBERS) + 1e9)
    finally:
        torch.set_num_threads(before)
    assert len(found) == 2


def test_gradients_in_other_orders_of_memory() -> None:
    grad = torch.randn(2, 8, 5, 5).contiguous(memory_format=torch.channels_last)
    square = grad.square()
    assert _C.descent_sum([grad], None, [square], 1.0, NUMBERS) == pytest.approx(
        reference([grad], None, [square], 1.0, NUMBERS), rel=1e-6
    )
    other = square.contiguous()
    assert _C.descent_sum([grad], None, [other], 1.0, NUMBERS) is None


@pytest.mark.parametrize(
    "grad",
    [
        torch.ones(4, 4)[:, ::2],
        torch.ones(4, dtype=torch.bfloat16),
        torch.ones(4).to_sparse(),
        torch.ones(4, dtype=torch.complex64),
        torch.ones(4, device="meta"),
    ],
    ids=["gaps", "bfloat16", "sparse", "complex", "meta"],
)
def test_others_are_not_summed(grad: Tensor) -> None:
    assert _C.descent_sum([torch.ones(3), grad], None, None, 1.0, None) is None


def test_infinities_come_through() -> None:
    grads = [torch.tensor([1.0, float("inf")]), torch.ones(3)]
    assert _C.descent_sum(grads, None, None, 1.0, None) == float("inf")
    assert _C.descent_sum([torch.zeros(9)], None, None, 1.0, NUMBERS) == 0


def test_wrong_arguments() -> None:
    grads = [torch.ones(3)]
    with pytest.raises(ValueError, match="same length"):
        _C.descent_sum(grads, [], None, 1.0, NUMBERS)
    with pytest.raises(TypeError):
        _C.descent_sum(tuple(grads), None, None, 1.0, None)
    with pytest.raises(TypeError):
        _C.descent_sum(grads, None, None, 1.0, (1.0, 2.0))
    with pytest.raises(ValueError, match="22 doubles"):
        _C.rate_next(array("d", [0.0]), 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, False)
    n = len(_C.rate_fields())
    for state in ([0.0] * n, bytes(8 * n), bytearray(8 * n), array("q", [0] * n)):
        with pytest.raises((TypeError, BufferError, ValueError)):
            _C.rate_next(state, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, False)


def test_no_rate_leaves_its_bounds() -> None:
    """Whatever losses and gradients come, in any order."""
    generator = torch.Generator().manual_seed(0)
    for most in (2.0, 20.0):
        state = array("d", [0.0] * len(_C.rate_fields()))
        last = 1.0
        for _ in range(2000):
            loss, descent = (torch.randn(2, generator=generator) * 20).exp().tolist()
            times = _C.rate_next(state, loss, descent, descent, 0.0, most, 0.4, False)
            assert 0 < times < float("inf") and abs(times) <= 1.0001 * 2.718282**most
            assert times <= last * 1.5 + 1e-12
            last = times
