"""Dropout and what it draws by, on the CPU.

Its gradient is timed with it: the row that runs forward decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

LENGTHS = (300, 1_000, 10_000, 100_000, 1_000_000, 4_000_000)


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    bernoulli = ("bernoulli",)
    for n in LENGTHS:
        yield _case("bernoulli", "any", n, _bernoulli)
        yield _case("dropout", "alone", n, _dropout, forwarded_to=bernoulli)
        yield _case(
            *("dropout", "gradient", n, _dropout_with_gradient),
            with_ops=("dropout_backward",),
            forwarded_to=bernoulli,
        )


def _case(
    op: str,
    kind: str,
    n: int,
    make: Callable[[int], Call],
    with_ops: tuple[str, ...] = (),
    forwarded_to: tuple[str, ...] = (),
) -> Case:
    variants = (partial(make, n),)
    return Case(op, kind, "float32", n, variants, with_ops, forwarded_to=forwarded_to)


def _bernoulli(n: int) -> Call:
    x = torch.empty(n)
    return lambda: x.bernoulli_(0.9)


def _dropout(n: int) -> Call:
    x = torch.randn(n)
    return lambda: F.dropout(x, 0.1)


def _dropout_with_gradient(n: int) -> Call:
    x, grad = torch.randn(n, requires_grad=True), torch.randn(n)
    return lambda: torch.autograd.grad(F.dropout(x, 0.1), x, grad)
