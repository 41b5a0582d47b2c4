"""The node of cross-entropy on CUDA, whose gradient reads the logits again.

Beside the logits and their gradient, which everybody has, nothing of their size is
there: stock keeps their log-softmax as well, and makes a second gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.loss.formulas import stock, total_gradient
from pai_torchacc.fusion.shadow import run


class CrossEntropyOfLogits(torch.autograd.Function):
    """The loss of logits [n, classes], with its gradient.

    Keeps the logits, so that a program that overwrites them before it calls backward()
    gets the error by which autograd says that.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, x: Tensor, target: Tensor, weight: Tensor | None, *options: Any
    ) -> Tensor:
        """Compute the loss.

        options are reduction, ignore_index, label smoothing, and the kernel row. Under
        autocast the loss is in float32, as stock's is, of logits as they are.
        """
        loss, saved = run(
            "cross_entropy",
            _host.load().cross_entropy_forward,
            (x, target, weight, *options),
            lambda: (stock()(x, target, weight, *options[:3]), None),
        )
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.save_for_backward(x, target, weight, saved)
        return loss

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradient of x."""
        *kept, saved = ctx.saved_tensors
        total = None
        if grad is not None:
            total = _gradient(grad, saved, *kept, *ctx.options)
        return total, None, None, None, None, None, None


def _gradient(grad: Tensor, saved: Tensor | None, *args: Any) -> Any:
    if torch.compiler.is_compiling():  # by compiled autograd
        return of_logits(grad, *args[:-1])
    if saved is None or torch.is_grad_enabled():
        _host.load().refuse("cross_entropy_backward", "gradient not supported")
        return of_logits(grad, *args[:-1])
    return run(
        "cross_entropy_backward",
        _host.load().cross_entropy_backward_from_logits,
        (*args, grad.contiguous(), saved),
        lambda: of_logits(grad, *args[:-1]),
    )


def of_logits(grad: Tensor, x: Tensor, *args: Any) -> Any:
    """Gradient of the logits by torch's operators; computed in float32."""
    p = torch.softmax(x.float(), 1)
    total = total_gradient(grad, None, p, *args)
    return None if total is None else total.to(x.dtype)
