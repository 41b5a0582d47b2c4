"""Softmax of rows, and softmax and log-softmax over another dimension, on the CPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch

from pai_torchacc.bench.cases import loss
from pai_torchacc.bench.cases.case import Call, Case

Shapes = tuple[tuple[int, ...], ...]

ROWS: dict[str, tuple[Shapes, ...]] = {
    "short": tuple((shape,) for shape in loss.SHORT),
    "long": tuple((shape,) for shape in loss.LONG),
}
"""Logits as (rows, classes)."""

COLUMNS: dict[str, tuple[Shapes, ...]] = {
    "short_columns": (
        ((2, 10, 50),),
        ((4, 10, 256), (1, 64, 150)),
        ((1, 21, 4096), (4, 64, 400)),
        ((1, 21, 128 * 128), (64, 64, 100)),
        ((4, 21, 128 * 128), (8, 10, 16384)),
    ),
    "long_columns": (
        ((1, 128, 20),),
        ((1, 128, 100), (2, 400, 16)),
        ((4, 150, 256), (1, 1000, 128)),
        ((1, 150, 4096), (16, 200, 196)),
        ((4, 150, 4096), (8, 1000, 256)),
    ),
}
"""Logits of pixels as (images, classes, pixels)."""

SLOW = 100_000
"""Elements from which the row "scalar" takes long, and is not measured."""


def cases() -> Iterator[Case]:
    """Cases of all of them; softmax is over dimension 1."""
    for kinds, names in ((ROWS, ("softmax",)), (COLUMNS, ("softmax", "log_softmax"))):
        for kind, places in kinds.items():
            for shapes in places:
                for name in names:
                    yield _case(name, kind, shapes, _forward)
                    yield _case(name, kind, shapes, _backward, "_backward")


def _case(
    name: str, kind: str, shapes: Shapes, make: object, direction: str = ""
) -> Case:
    work = min(math.prod(shape) for shape in shapes)
    return Case(
        f"{name}{direction}",
        kind,
        "float32",
        work,
        tuple(partial(make, name, shape) for shape in shapes),  # type: ignore[arg-type]
        without_rows=("scalar",) if work > SLOW else (),
    )


def _forward(name: str, shape: tuple[int, ...]) -> Call:
    x, of = torch.randn(shape), getattr(torch, name)
    return lambda: of(x, 1)


def _backward(name: str, shape: tuple[int, ...]) -> Call:
    y, grad = getattr(torch, name)(torch.randn(shape), 1), torch.randn(shape)
    of = getattr(torch.ops.aten, f"_{name}_backward_data")
    return lambda: of(grad, y, 1, torch.float32)
