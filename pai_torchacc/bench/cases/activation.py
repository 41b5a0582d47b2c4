"""Activations as torch's operators compute them alone, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
CHANNELS = 50
CURVES = ("mish", "tanh", "sigmoid", "silu", "hardswish", "hardsigmoid")
GRADIENTS = tuple(f"{name}_backward" for name in CURVES if name not in CURVES[1:3])
"""Operators of aten; stock's gradients of tanh and sigmoid leave nothing to gain."""


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for n in LENGTHS:
        for name in CURVES:
            yield _case(name, "any", n, partial(_curve, name, n))
            yield _case(name, "in_place", n, partial(_in_place, name, n))
        for name in GRADIENTS:
            yield _case(name, "any", n, partial(_gradient, name, n))
        yield _case("elu", "any", n, partial(_curve, "elu", n))
        yield _case("elu", "in_place", n, partial(_in_place, "elu", n))
        yield _case("elu_backward", "any", n, partial(_elu_backward, n))
        for kind, how in (("erf", "none"), ("tanh", "tanh")):
            yield _case("gelu", kind, n, partial(_curve, "gelu", n, approximate=how))
            slope = partial(_gradient, "gelu_backward", n, approximate=how)
            yield _case("gelu_backward", kind, n, slope)
        planes = partial(_prelu_backward, (1, CHANNELS, n // CHANNELS))
        pixels = partial(_prelu_backward, (n // CHANNELS, CHANNELS))
        one = partial(_prelu_backward, (n,))
        yield _case("prelu_backward", "planes", n, planes, one)
        yield _case("prelu_backward", "pixels", n, pixels)


def _case(op: str, kind: str, n: int, *makes: partial[Call]) -> Case:
    return Case(op, kind, "float32", n, makes)


def _curve(name: str, n: int, **options: str) -> Call:
    x, of = torch.randn(n), getattr(F, name)
    return lambda: of(x, **options)


def _in_place(name: str, n: int) -> Call:
    """Of the same numbers each time, which a copy brings back."""
    x, y, of = torch.randn(n), torch.empty(n), getattr(torch._C._nn, f"{name}_", None)
    of = of or getattr(torch, f"{name}_")
    return lambda: of(y.copy_(x))


def _gradient(name: str, n: int, **options: str) -> Call:
    x, grad, of = torch.randn(n), torch.randn(n), getattr(torch.ops.aten, name)
    return lambda: of(grad, x, **options)


def _elu_backward(n: int) -> Call:
    x, grad = torch.randn(n, requires_grad=True), torch.randn(n)
    y = F.elu(x)
    return lambda: torch.autograd.grad(y, x, grad, retain_graph=True)


def _prelu_backward(sizes: tuple[int, ...]) -> Call:
    x, grad = torch.randn(sizes), torch.randn(sizes)
    weight = torch.full((1,) * len(sizes), 0.25)
    if len(sizes) > 1:
        weight = weight.expand(1, sizes[1], *weight.shape[2:]).contiguous()
    return lambda: torch.ops.aten._prelu_kernel_backward(grad, x, weight)
