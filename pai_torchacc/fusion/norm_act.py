"""BatchNorm in training and the activation behind it, as one node of autograd.

``nn.Sequential`` runs the two as one where both are known. The extension has computed
the result when the node is made, which keeps the norm's input and a few numbers for
each channel. Torch's own nodes keep what the activation was applied to, or its result,
as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion.activations import ACTIVATIONS, through_activation
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.node import lean_apply, named_like, with_values

_BEHIND_NORMS = {
    "relu": "Relu",
    "silu": "Silu",
    "relu6": "Hardtanh",
    "hardswish": "Hardswish",
}
"""Activations, and how torch calls their nodes: ours are called so, too."""

_NAMES = (*ACTIVATIONS, "relu6", "hardswish")
"""By the extension's code."""


class NormAct(torch.autograd.Function):
    """``act(batch_norm(x, weight, bias))`` by the statistics of the batch.

    The bias is kept beside what is saved: torch's own nodes do not save it, so that a
    program may change it in place before backward. What it was is in ``numbers``.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        made: tuple[Tensor, Tensor],
        activation: int,
        row: str,
        eps: float,
    ) -> Tensor:
        """Hand out what the row has made."""
        y, numbers = made
        ctx.set_materialize_grads(False)
        ctx.activation, ctx.row, ctx.eps = activation, row, eps
        ctx.bias = bias
        ctx.save_for_backward(x, weight, numbers)
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of x, weight and bias."""
        x, weight, numbers = ctx.saved_tensors
        wants, c = ctx.needs_input_grad[:3], _host.load()
        done: Sequence[Tensor | None] | None = None
        if grad is None:
            done = None, None, None
        elif torch.is_grad_enabled():
            c.refuse("batch_norm_act_backward", "gradient not supported")
        elif not torch.compiler.is_compiling():  # by compiled autograd
            done = c.batch_norm_act_backward(
                ctx.row, ctx.activation, grad, x, numbers, weight, wants
            )
        if done is None:
            kept = x, weight, ctx.bias, numbers
            done = gradients(grad, kept, ctx.activation, ctx.eps, wants)
        return *done, None, None, None, None


def gradients(
    grad: Tensor,
    kept: tuple[Tensor, Tensor | None, Tensor | None, Tensor],
    activation: int,
    eps: float,
    wants: Sequence[bool],
) -> Sequence[Tensor | None]:
    """Differentiably, the gradients of x, weight and bias, where they are wanted.

    ``kept`` is x, weight, bias, and of each channel the mean, 1 / its deviation, and
    scale and shift of ``z = (x - mean) * scale + shift``, the activation's input.
    """
    x, weight, bias, numbers = kept
    mean, rstd, scale, shift = numbers
    if torch.is_grad_enabled():
        # A program may have changed both since, or what their .data is.
        weight_then = None if weight is None else with_values(weight, scale / rstd)
        bias_then = None if bias is None else with_values(bias, shift)
        z = torch.native_batch_norm(
            x, weight_then, bias_then, None, None, True, 0.0, eps
        )[0]
    else:
        shape = 1, -1, *(1,) * (x.dim() - 2)
        z = (x - mean.view(shape)) * scale.view(shape) + shift.view(shape)
    done: Sequence[Tensor | None] = torch.ops.aten.native_batch_norm_backward(
        _through(grad, z, activation),
        *(x, weight, None, None, mean, rstd, True, eps, list(wants)),
    )
    return [of if wanted else None for of, wanted in zip(done, wants, strict=True)]


def _through(grad: Tensor, z: Tensor, activation: int) -> Tensor:
    """Differentiably, the gradient before the activation, which was applied to z."""
    aten = torch.ops.aten
    match _NAMES[activation]:
        case "relu6":
            of_z: Tensor = aten.hardtanh_backward(grad, z, 0.0, 6.0)
        case "hardswish":
            of_z = aten.hardswish_backward(grad, z)
        case _:
            through = through_activation(grad, z, activation)
            assert through is not None
            of_z = through
    return of_z


def install(c: Any) -> None:
    """Let the extension make nodes."""
    c.lend(
        norm_act_nodes=tuple(
            lean_apply(named_like(NormAct, _BEHIND_NORMS[name]))
            if name in _BEHIND_NORMS
            else None
            for name in _NAMES
        )
    )
