"""Operators that programs call by name, without a gradient and with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import ops
from pai_torchacc.bench.cases.case import Call, Case
from pai_torchacc.bench.cases.layer_norm import ROWS, SLOW

LENGTHS = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
WIDTH = 500
"""Elements of a row, which divides all lengths."""

STOCKS_OWN = {
    "gated_act": ("silu",),
    "add_act": (),
    "bias_act": ("gelu",),
    "dropout_add": ("dropout",),
    "add_norm": ("layer_norm",),
}
"""Operators of ours that their parts come to."""

_POINTWISE: dict[str, Callable[..., Tensor]] = {
    "gated_act": ops.swiglu,
    "add_act": ops.add_act,
    "bias_act": ops.bias_gelu,
    "dropout_add": partial(ops.dropout_add, p=0.1),
}


def cases() -> Iterator[Case]:
    """Cases of all of them."""
    for n in LENGTHS:
        for op, call in _POINTWISE.items():
            width = (WIDTH,) if op == "bias_act" else (n // WIDTH, WIDTH)
            sizes = (n // WIDTH, WIDTH), width
            slow = ("scalar",) if n > SLOW else ()
            for kind, is_trained in (("alone", False), ("gradient", True)):
                yield Case(
                    *(op, kind, "float32", n),
                    (partial(_call, call, sizes, is_trained),),
                    with_ops=_gradients_of(op) if is_trained else (),
                    without_rows=slow,
                    forwarded_to=_stocks_own(op, is_trained),
                )
    for kind, shapes_of in ROWS.items():
        for shapes in shapes_of:
            work = min(n * width for n, width in shapes)
            for prefix, is_trained in (("", False), ("train_", True)):
                yield Case(
                    *("add_norm", prefix + kind, "float32", work),
                    tuple(partial(_add_norm, *s, is_trained) for s in shapes),
                    with_ops=("add_norm_backward",) if is_trained else (),
                    without_rows=("scalar",) if work > SLOW else (),
                    forwarded_to=_stocks_own("add_norm", is_trained),
                )


def _gradients_of(op: str) -> tuple[str, ...]:
    return ("dropout_backward" if op == "dropout_add" else f"{op}_backward",)


def _stocks_own(op: str, is_trained: bool) -> tuple[str, ...]:
    own = STOCKS_OWN[op]
    return own + tuple(f"{name}_backward" for name in own) if is_trained else own


def _call(
    of: Callable[..., Tensor], sizes: tuple[tuple[int, ...], ...], is_trained: bool
) -> Call:
    return _with_gradient(of, [torch.randn(s) for s in sizes], is_trained)


def _add_norm(n: int, width: int, is_trained: bool) -> Call:
    tensors = [torch.randn(n, width), torch.randn(n, width)]
    weights = [torch.rand(width), torch.randn(width)]

    def of(*args: Any) -> Tensor:
        x, residual, weight, bias = args
        return ops.add_norm(x, residual, width, weight, bias)[0]

    return _with_gradient(of, tensors + weights, is_trained)


def _with_gradient(
    of: Callable[..., Tensor], tensors: list[Tensor], is_trained: bool
) -> Call:
    if not is_trained:
        return lambda: of(*tensors)
    for t in tensors:
        t.requires_grad_()
    grad = torch.randn_like(of(*tensors))
    return lambda: torch.autograd.grad(of(*tensors), tensors, grad)
