"""Scaled dot product attention, whole, causal and with a mask, and its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case, Gradient

SHAPES = (
    (4, 16, 32),
    (8, 64, 32),
    (32, 128, 32),
    (32, 256, 64),
    (96, 128, 64),
    (16, 1024, 64),
)
"""Heads of the whole batch, positions, and numbers a head."""

KINDS = ("full", "causal", "masked")


def cases() -> Iterator[Case]:
    """Cases of attention and of its backward alone."""
    for heads, n, d in SHAPES:
        for kind in KINDS:
            for op, make in (
                ("attention", _forward),
                ("attention_backward", _backward),
            ):
                made = partial(make, heads, n, d, kind)
                with_ops = ("attention",) if op != "attention" else ()
                work = heads * n * n * d
                yield Case(op, kind, "float32", work, (made,), with_ops)


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, kind: str
) -> torch.Tensor:
    mask = torch.zeros(q.shape[-2], k.shape[-2]) if kind == "masked" else None
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=kind == "causal")


def _tensors(heads: int, n: int, d: int) -> list[torch.Tensor]:
    """As projections leave them: positions outside, heads inside."""
    return [torch.randn(1, n, heads, d).transpose(1, 2) for _ in range(3)]


def _forward(heads: int, n: int, d: int, kind: str) -> Call:
    q, k, v = _tensors(heads, n, d)
    return lambda: _attend(q, k, v, kind)


def _backward(heads: int, n: int, d: int, kind: str) -> Call:
    q, k, v = _tensors(heads, n, d)
    return Gradient(lambda: _attend(q, k, v, kind), [q, k, v])
