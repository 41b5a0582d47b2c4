"""Scaled dot product attention, whole, causal and with a mask, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case, Gradient

SEEN = ("full", "causal", "masked")


class Shape(NamedTuple):
    """Heads of the whole batch, positions, and numbers a head."""

    heads: int
    n_queries: int
    n_keys: int
    d: int


COUNTS = {
    "one": ((12, 1, 64), (12, 1, 512)),  # decoding
    "few": ((4, 16, 16), (32, 32, 128)),
    "many": ((8, 64, 64), (32, 128, 128), (16, 512, 512)),
}
"""By the last part of a kind, whose limits are in ops/attention/attention.c."""

WIDTHS = {"d32": 32, "d64": 64, "d128": 128}


def _shapes() -> Iterator[tuple[str, Shape]]:
    """Kinds but for their first part, and what is measured there."""
    for width, d in WIDTHS.items():
        for count, sizes in COUNTS.items():
            yield from ((f"{width}_{count}", Shape(*size, d)) for size in sizes)


def cases() -> Iterator[Case]:
    """Cases of attention and of its backward alone, with dropout and without."""
    for end, shape in _shapes():
        for seen in SEEN:
            yield _case("attention", shape, seen, end)
            yield _case("attention_backward", shape, seen, end)
            if shape.n_queries > 1:
                yield _case("attention_dropout", shape, seen, end)
                yield _case("attention_dropout_backward", shape, seen, end)


def _case(op: str, shape: Shape, seen: str, end: str) -> Case:
    forward = op.removesuffix("_backward")
    p = 0.1 if forward == "attention_dropout" else 0.0
    make = partial(_forward if op == forward else _backward, shape, seen, p)
    work = shape.heads * shape.n_queries * shape.n_keys * shape.d
    return Case(
        *(op, f"{seen}_{end}", "float32", work, (make,)),
        with_ops=(forward,) if op != forward else (),
        without_rows=("scalar",),
        forwarded_to=("bernoulli", "softmax") if op == "attention_dropout" else (),
    )


def _forward(shape: Shape, seen: str, p: float) -> Call:
    return _attention(shape, seen, p, _tensors(shape))


def _backward(shape: Shape, seen: str, p: float) -> Call:
    tensors = _tensors(shape)
    return Gradient(_attention(shape, seen, p, tensors), tensors)


def _attention(shape: Shape, seen: str, p: float, tensors: list[torch.Tensor]) -> Call:
    mask = torch.zeros(shape.n_queries, shape.n_keys) if seen == "masked" else None
    is_causal = seen == "causal"

    # Found by its name at each call: a stand-in may take its place.
    return lambda: F.scaled_dot_product_attention(*tensors, mask, p, is_causal)


def _tensors(shape: Shape) -> list[torch.Tensor]:
    """As projections leave them: positions outside, heads inside."""
    heads, n_queries, n_keys, d = shape
    return [
        torch.randn(1, n, heads, d).transpose(1, 2) for n in (n_queries, n_keys, n_keys)
    ]
