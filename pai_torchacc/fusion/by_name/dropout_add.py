"""A residual sum with the dropout before it, as one operator."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion.compiled import not_compiled


def dropout_add(
    input: Tensor, residual: Tensor, p: float = 0.5, training: bool = True
) -> Tensor:
    """Compute ``dropout(input, p, training) + residual``.

    Which elements are dropped is what ``torch.nn.functional.dropout`` would have
    dropped, by the same numbers of the device's generator, which moves on as far.

    Parameters
    ----------
    input, residual : Tensor
        [...]
    p : float
        The probability of an element to be dropped, 0 to 1.
    training : bool
        Without it nothing is dropped.

    Returns
    -------
    Tensor
        Of input's sizes.

    Raises
    ------
    ValueError
        p is no probability.
    RuntimeError
        As torch's own, where the shapes do not fit.
    """
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p={p}; a probability is from 0 to 1")
    drops = training and 0.0 < p < 1.0
    given = input, residual
    if drops and by_name.can_be_ours("dropout_add", *given):
        made = _dropped(*given, p)
        if made is not None:
            y: Tensor = by_name.behind_node(DropoutAdd, given, made, 1 / (1 - p))[0]
            return y
    return F.dropout(input, p, training) + residual


def _dropped(x: Tensor, residual: Tensor, p: float) -> tuple[Tensor, Tensor] | None:
    """The result and its mask, or None where torch has to do it."""
    c = _host.load()
    if torch.cuda.is_current_stream_capturing():  # the generator cannot be asked
        c.refuse("dropout_add", "mode or transform active")
        return None
    generator = torch.cuda.default_generators[x.get_device()]
    found: tuple[Tensor, Tensor] | None = c.dropout_add(x, residual, p, generator)
    return found


class DropoutAdd(torch.autograd.Function):
    """What has been computed, with its gradient; keeps the mask."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        made: tuple[Tensor, Tensor],
        scale: float,
    ) -> tuple[Tensor]:
        """Return the result; made is that with its mask."""
        y, mask = made
        ctx.set_materialize_grads(False)
        ctx.scale = scale
        ctx.save_for_backward(mask)
        return (y,)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of x and of the residual."""
        (mask,) = ctx.saved_tensors
        scale, of_x = ctx.scale, None
        if grad is not None and ctx.needs_input_grad[0]:
            (of_x,) = by_name.gradients(
                "dropout_backward",
                _host.load().dropout_backward,
                (grad.contiguous(), mask, scale),
                lambda: (torch.ops.aten.native_dropout_backward(grad, mask, scale),),
            )
        return of_x, grad, None, None
