"""Losses of each element, their means, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pai_torchacc.bench.cases.case import Call, Case

LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)

SLOW = 100_000
"""Elements from which the row "scalar" takes long, and is not measured."""

LOSSES = (
    "mse_loss",
    "smooth_l1_loss",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
)

REDUCTIONS = {"each": 0, "sum": 1}


def cases() -> Iterator[Case]:
    """Cases of all of them; the mean stands for the sum as well."""
    for name in LOSSES:
        for kind, reduction in REDUCTIONS.items():
            for n in LENGTHS:
                slow = ("scalar",) if n > SLOW else ()
                make = partial(_loss, name, n, reduction)
                yield Case(name, kind, "float32", n, (make,), without_rows=slow)
                if name.endswith("logits"):  # its gradient is several of torch's
                    continue
                gradient = f"{name}_backward"
                make = partial(_gradient, gradient, n, reduction)
                yield Case(gradient, kind, "float32", n, (make,), without_rows=slow)


def _loss(name: str, n: int, reduction: int) -> Call:
    x, target, of = torch.rand(n), torch.rand(n), getattr(torch.ops.aten, name)
    return lambda: of(x, target, reduction=reduction)


def _gradient(name: str, n: int, reduction: int) -> Call:
    x, target, of = torch.rand(n), torch.rand(n), getattr(torch.ops.aten, name)
    grad = torch.randn(()) if reduction else torch.randn(n)
    if name.startswith("smooth"):
        return lambda: of(grad, x, target, reduction, 1.0)
    return lambda: of(grad, x, target, reduction=reduction)
