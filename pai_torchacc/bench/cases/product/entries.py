"""Small calls from Python that are computed at their entry, without a gradient."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from pai_torchacc.bench.cases.case import Call, Case
from pai_torchacc.bench.cases.product.linear import OF_LARGE, SMALL

SIDES = ((1, 1), (4, 4), (8, 64), (32, 128), (128, 128))
BOTH: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
}


def cases() -> Iterator[Case]:
    """Cases of small_pointwise by elements, and of mm by multiply-adds."""
    for sides in SIDES:
        place = ("float32", math.prod(sides))
        yield Case("small_pointwise", "relu", *place, (partial(_relu, sides),))
        for kind, of in BOTH.items():
            for number in (False, True):
                make = partial(_both, of, sides, number)
                name = f"{kind}_number" if number else kind
                yield Case("small_pointwise", name, *place, (make,))
    for m, k, n in sorted(SMALL, key=math.prod):
        for kind in ("nn", "nt"):
            make = partial(_product, kind, (m, k, n))
            place = ("float32", m * k * n)
            yield Case("mm", f"lean_{kind}", *place, (make,), without_rows=OF_LARGE)


def _relu(sides: tuple[int, int]) -> Call:
    x = torch.randn(sides)
    return lambda: torch.relu(x)


def _both(of: Callable[[Any, Any], Any], sides: tuple[int, int], number: bool) -> Call:
    x, y = torch.randn(sides), 0.75 if number else torch.randn(sides)
    return lambda: of(x, y)


def _product(kind: str, sizes: tuple[int, int, int]) -> Call:
    m, k, n = sizes
    a, b = torch.randn(m, k), torch.randn(k, n)
    b = torch.randn(n, k).t() if kind[1] == "t" else b
    return lambda: torch.matmul(a, b)
