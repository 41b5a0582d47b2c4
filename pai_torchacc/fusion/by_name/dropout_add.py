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
            y: Tensor = by_name.behind_node(DropoutAdd, given, made, 1 - p)[0]
            return y
    return F.dropout(input, p, training) + residual


def _dropped(
    x: Tensor, residual: Tensor, p: float
) -> tuple[Tensor, Tensor | None] | None:
    """The result and its mask, or None where torch has to do it."""
    c = _host.load()
    if x.is_cpu:
        made = c.dropout_add_on_cpu(x, residual, p, by_name.origin(x, residual))
        return (made, None) if isinstance(made, Tensor) else made
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
        keep: float,
    ) -> tuple[Tensor]:
        """Return the result; made is that with its mask."""
        y, mask = made
        ctx.set_materialize_grads(False)
        ctx.keep = keep
        ctx.save_for_backward(mask)
        return (y,)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of x and of the residual."""
        (mask,) = ctx.saved_tensors
        of_x = None
        if grad is not None and ctx.needs_input_grad[0]:
            of_x = gradient(grad, mask, ctx.keep)
        return of_x, grad, None, None


def gradient(grad: Tensor, mask: Tensor, keep: float) -> Tensor:
    """The gradient of what was dropped by this mask; ``keep`` is 1 - p."""
    c = _host.load()
    if grad.is_cpu:
        (found,) = by_name.gradients(
            "dropout_backward",
            lambda *args: by_name.in_tuple(c.dropout_gradient(*args)),
            (grad.contiguous(), mask, keep),
            lambda: (grad * mask.to(grad.dtype).div_(keep),),
        )
    else:
        (found,) = by_name.gradients(
            "dropout_backward",
            c.dropout_backward,
            (grad.contiguous(), mask, 1 / keep),
            lambda: (torch.ops.aten.native_dropout_backward(grad, mask, 1 / keep),),
        )
    of_x: Tensor = found
    return of_x
