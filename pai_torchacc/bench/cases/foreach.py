"""Operations over lists of tensors: clipping, averages of weights, unscaling."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad

from pai_torchacc.bench.cases.case import Call, Case

# By the mean size of a tensor: how many there are, of how many elements.
LISTS: dict[str, tuple[tuple[int, int], ...]] = {
    "small": ((16, 256), (64, 1024), (512, 2048)),
    "medium": ((16, 4096), (16, 65536)),
    "large": ((4, 1 << 18), (4, 1 << 21)),
}


def _norm(n: int, size: int) -> Call:
    grads = [torch.randn(size) for _ in range(n)]
    return lambda: clip_grad._get_total_norm(grads)


def _scale(n: int, size: int, most: float) -> Call:
    """By a factor near 1, so that gradients stay what they are; or by 1 itself."""
    params = [nn.Parameter(torch.empty(size)) for _ in range(n)]
    for p in params:
        p.grad = torch.randn(size)
    total = torch.tensor(1.0)
    return lambda: clip_grad._clip_grads_with_norm_(params, most, total)


def _clamp(n: int, size: int) -> Call:
    tensors = [torch.randn(size) for _ in range(n)]
    return lambda: torch._foreach_clamp_min_(tensors, -1.0)


def _lerp(n: int, size: int) -> Call:
    averages, tensors = ([torch.randn(size) for _ in range(n)] for _ in range(2))
    return lambda: torch._foreach_lerp_(averages, tensors, 0.001)


def _unscale(n: int, size: int) -> Call:
    grads = [torch.randn(size) for _ in range(n)]
    found, factor = torch.zeros(()), torch.tensor(0.99999)
    unscale = torch._amp_foreach_non_finite_check_and_unscale_
    return lambda: unscale(grads, found, factor)


MAKERS: tuple[tuple[str, str, Any], ...] = (
    ("clip_grad_norm", "norm ", _norm),
    ("clip_grad_norm", "scale ", partial(_scale, most=0.99999)),
    ("clip_grad_norm", "whole ", partial(_scale, most=2.0)),
    ("foreach_clamp", "", _clamp),
    ("foreach_lerp", "", _lerp),
    ("unscale_grads", "", _unscale),
)


def cases() -> Iterator[Case]:
    """Cases of all of them; the table counts elements."""
    for op, way, make in MAKERS:
        for kind, lists in LISTS.items():
            for n, size in lists:
                variant = partial(make, n, size)
                yield Case(op, f"{way}{kind}", "float32", n * size, (variant,))
