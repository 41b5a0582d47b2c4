"""Activations as torch's operators compute them alone, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
CHANNELS = 50


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for n in LENGTHS:
        yield _case("mish", "any", n, partial(_mish, n))
        yield _case("mish_backward", "any", n, partial(_mish_backward, n))
        planes = partial(_prelu_backward, (1, CHANNELS, n // CHANNELS))
        pixels = partial(_prelu_backward, (n // CHANNELS, CHANNELS))
        one = partial(_prelu_backward, (n,))
        yield _case("prelu_backward", "planes", n, planes, one)
        yield _case("prelu_backward", "pixels", n, pixels)


def _case(op: str, kind: str, n: int, *makes: partial[Call]) -> Case:
    return Case(op, kind, "float32", n, makes)


def _mish(n: int) -> Call:
    x = torch.randn(n)
    return lambda: F.mish(x)


def _mish_backward(n: int) -> Call:
    x, grad = torch.randn(n), torch.randn(n)
    return lambda: torch.ops.aten.mish_backward(grad, x)


def _prelu_backward(sizes: tuple[int, ...]) -> Call:
    x, grad = torch.randn(sizes), torch.randn(sizes)
    weight = torch.full((1,) * len(sizes), 0.25)
    if len(sizes) > 1:
        weight = weight.expand(1, sizes[1], *weight.shape[2:]).contiguous()
    return lambda: torch.ops.aten._prelu_kernel_backward(grad, x, weight)
