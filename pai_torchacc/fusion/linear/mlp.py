"""Blocks of two linear layers with an activation between them, as one node.

Such a block that is trained on CUDA, in ``nn.Sequential`` or as the feed-forward part
of torch's Transformer layers, is six products, whose epilogues do nearly all else: see
csrc/ops/linear/cuda/mlp_cuda.h. Everywhere else the layers are called as ever.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion.activations import saves_z, through_activation
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.linear import product_gradients, stock_forward
from pai_torchacc.fusion.node import as_saved, lean_apply, named_like
from pai_torchacc.fusion.shadow import run

_X, _W1, _B1, _W2, _B2 = range(5)

Wants = tuple[bool, ...]
"""Whether a gradient is wanted of x, w1, b1, w2 and b2."""


class Mlp(torch.autograd.Function):
    """``linear(act(linear(x, w1, b1)), w2, b2)`` with its gradient.

    The hidden layer, and what the activation was applied to where its gradient takes
    that, are outputs of the node, so that a second derivative finds its way through
    them. What no gradient needs is not kept.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
        activation: int,
        row: str,
    ) -> Any:
        """Compute y, and h or (h, z): both with their leading dimensions in one."""
        wants = ctx.needs_input_grad[:5]
        goes_through = _goes_through(wants)
        given = x, w1, b1, w2, b2
        y, h, saved = run(
            "mlp",
            _host.load().mlp_forward,
            (*given, activation, row, goes_through),
            lambda: _stock(given, activation, goes_through),
        )
        has_z = saves_z(activation)
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.row, ctx.shape = activation, row, x.shape
        ctx.save_for_backward(
            x if wants[_W1] else None,
            w1 if wants[_X] else None,
            w2 if goes_through else None,
            h if wants[_W2] or not has_z else None,
            saved,
        )
        ctx.weights_as_they_were = (
            w1.detach() if wants[_X] else None,
            w2.detach() if goes_through else None,
        )
        return (y, h, saved) if has_z and saved is not None else (y, h)

    @staticmethod
    @not_compiled
    def backward(
        ctx: Any,
        grad: Tensor | None,
        grad_h: Tensor | None = None,
        grad_z: Tensor | None = None,
    ) -> Any:
        """Return the gradients of x, w1, b1, w2 and b2."""
        x, w1, w2, h, saved = ctx.saved_tensors
        row = None if torch.compiler.is_compiling() else ctx.row  # compiled autograd
        if row:
            weights = ctx.weights_as_they_were
            if not torch._C._autograd._get_current_graph_task_keep_graph():
                ctx.weights_as_they_were = None
            w1, w2 = map(as_saved, (w1, w2), weights)
        grads = grad, grad_h, grad_z
        kept = x, w1, w2, h, saved
        wants = ctx.needs_input_grad[:5]
        of_x, *others = _gradients(grads, kept, ctx.activation, wants, row)
        of_x = None if of_x is None else of_x.view(ctx.shape)
        return of_x, *others, None, None


def _goes_through(wants: Wants) -> bool:
    """Whether a gradient is wanted of what lies before the activation."""
    return wants[_X] or wants[_W1] or wants[_B1]


def _gradients(
    grads: tuple[Tensor | None, ...],
    kept: tuple[Tensor | None, ...],
    activation: int,
    wants: Wants,
    row: str | None,
) -> tuple[Tensor | None, ...]:
    """Gradients by the row that ran forward, or by torch's own operators.

    The latter can be differentiated again.
    """
    grad, grad_h, grad_z = grads
    is_first = grad_h is None and grad_z is None and not torch.is_grad_enabled()
    if row and grad is not None and is_first:
        return run(
            "mlp_backward",
            _host.load().mlp_backward,
            (row, activation, grad.contiguous(), *kept, wants),
            lambda: _stock_gradients(grads, kept, activation, wants),
        )
    if row:
        _host.load().refuse("mlp_backward", "gradient not supported")
    return _stock_gradients(grads, kept, activation, wants)


def _stock(
    given: tuple[Any, ...], activation: int, keeps_saved: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    x, w1, b1, w2, b2 = given
    hidden = stock_forward(x, w1, b1, activation)
    h, z = hidden if isinstance(hidden, tuple) else (hidden, None)
    y = torch._C._nn.linear(h, w2, b2)
    saved = z.flatten(0, -2) if z is not None and keeps_saved else None
    return y, h.flatten(0, -2), saved


def _stock_gradients(
    grads: tuple[Tensor | None, ...],
    kept: tuple[Tensor | None, ...],
    activation: int,
    wants: Wants,
) -> tuple[Tensor | None, ...]:
    grad, grad_h, grad_z = grads
    x, w1, w2, h, saved = kept
    of_w2 = of_b2 = None
    if grad is not None:
        rows = grad.reshape(-1, grad.shape[-1])  # vmap has no flatten
        _, of_w2, of_b2 = product_gradients(rows, h, None, (False, *wants[_W2:]))
        if _goes_through(wants):
            grad_h = _sum(grad_h, rows.matmul(w2))
    if not _goes_through(wants):
        return None, None, None, of_w2, of_b2
    before = saved if saves_z(activation) else h
    grad_z = _sum(grad_z, through_activation(grad_h, before, activation))
    if grad_z is None:
        return None, None, None, of_w2, of_b2
    return *product_gradients(grad_z, x, w1, wants[:_W2]), of_w2, of_b2


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def install(c: Any) -> None:
    """Let the extension make nodes."""
    c.lend(mlp_node=lean_apply(named_like(Mlp, "Addmm")))
