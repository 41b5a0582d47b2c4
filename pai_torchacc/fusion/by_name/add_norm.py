"""A residual sum with the norm behind it, as one operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.shadow import checked

NORMS = ("layer_norm", "rms_norm")


def add_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = 1e-5,
    *,
    norm: str = "layer_norm",
) -> tuple[Tensor, Tensor]:
    """Normalize ``input + residual``, and return the sum as well.

    Parameters
    ----------
    input, residual : Tensor
        [..., *normalized_shape]
    normalized_shape : int or sequence of int
        The last dimensions, over which mean and variance are taken.
    weight, bias : Tensor, optional
        [*normalized_shape]; ``rms_norm`` has no bias.
    eps : float, optional
        Added to the variance; None is of ``rms_norm`` only, as in torch: float32's.
    norm : str
        ``layer_norm`` or ``rms_norm``.

    Returns
    -------
    tuple of Tensor
        The normalized sum, and the sum. Of 16-bit tensors what is normalized is the
        sum in float32, not what is returned of it.

    Raises
    ------
    ValueError
        There is no such norm, or a bias with ``rms_norm``.
    RuntimeError
        As torch's own, where the shapes do not fit.
    """
    if norm not in NORMS:
        raise ValueError(f"norm={norm!r}; there are: {', '.join(NORMS)}")
    is_rms = norm == "rms_norm"
    if is_rms and bias is not None:
        raise ValueError("rms_norm has no bias")
    is_one = isinstance(normalized_shape, int)
    shape = (normalized_shape,) if is_one else tuple(normalized_shape)
    fits = shape and tuple(input.shape[-len(shape) :]) == shape
    added = torch.finfo(torch.float32).eps if eps is None and is_rms else eps
    given = input, residual, weight, bias
    if fits and added is not None and by_name.can_be_ours("add_norm", *given):
        options = len(shape), float(added), is_rms
        made = checked(
            "add_norm",
            _host.load().add_norm,
            (*given, *options, by_name.origin(*given)),
            lambda: _stock_parts(given, shape, float(added), is_rms),
        )
        if made is not None:
            y, total, *_ = by_name.behind_node(AddNorm, given, made, *options)
            return y, total
    total = input + residual
    if is_rms:
        return F.rms_norm(total, shape, weight, eps), total
    return F.layer_norm(total, shape, weight, bias, eps), total


def _stock_parts(
    given: tuple[Any, ...], shape: tuple[int, ...], eps: float, is_rms: bool
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """What the extension's function gives, by torch's operators."""
    x, residual, weight, bias = given
    total = x + residual
    if is_rms:
        y, rstd = torch.ops.aten._fused_rms_norm(total, shape, weight, eps)
        return y, total, None, rstd
    args = total, shape, weight, bias, eps
    y, mean, rstd = torch.ops.aten.native_layer_norm(*args)
    return y, total, mean, rstd


class AddNorm(torch.autograd.Function):
    """What has been computed, with its gradients.

    Keeps the sum, which is a result, and mean and rstd of its rows.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        made: tuple[Any, ...],
        *options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Return the normalized sum and the sum; options are n_last, eps and is_rms."""
        y, total, mean, rstd = made
        ctx.set_materialize_grads(False)
        ctx.options = options
        if not any(ctx.needs_input_grad[:2]):  # as torch's sum of the two
            ctx.mark_non_differentiable(total)
        ctx.save_for_backward(total, rstd, mean, weight)
        return y, total

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad_y: Tensor | None, grad_sum: Tensor | None) -> Any:
        """Return gradients: of x and residual, which are the same, and of weights."""
        total, rstd, mean, weight = ctx.saved_tensors
        n_last = ctx.options[0]
        of_x, of_weight, of_bias = grad_sum, None, None
        wants = ctx.needs_input_grad
        if grad_y is not None:
            of_x, of_weight, of_bias = by_name.gradients(
                "add_norm_backward",
                _host.load().add_norm_backward,
                (
                    *(grad_y.contiguous(), total, rstd, mean, weight),
                    None if grad_sum is None else grad_sum.contiguous(),
                    *(n_last, bool(wants[2] or wants[3])),
                ),
                lambda: gradients(grad_y, grad_sum, total, weight, *ctx.options),
            )
        shape = total.shape[total.dim() - n_last :]
        weights = (
            g.reshape(shape) if g is not None and wanted else None
            for g, wanted in zip((of_weight, of_bias), wants[2:4], strict=True)
        )
        return of_x, of_x, *weights, None, None, None, None


def gradients(
    grad: Tensor,
    grad_sum: Tensor | None,
    total: Tensor,
    weight: Tensor | None,
    n_last: int,
    eps: float,
    is_rms: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the sum, the weight and the bias, differentiable.

    With hat the normalized sum and g the gradient times the weight, that of the sum is
    ``rstd * (g - mean(g) - hat * mean(g * hat)) + grad_sum``, for RMSNorm without
    ``mean(g)``.
    """
    dims = tuple(range(-n_last, 0))
    wide = torch.float64 if total.dtype is torch.float64 else torch.float32
    x, dy = total.to(wide), grad.to(wide)
    if not is_rms:
        x = x - x.mean(dims, keepdim=True)
    rstd = (x.square().mean(dims, keepdim=True) + eps).rsqrt()
    hat = x * rstd
    g = dy if weight is None else dy * weight.to(wide)
    inner = g - hat * (g * hat).mean(dims, keepdim=True)
    if not is_rms:
        inner = inner - g.mean(dims, keepdim=True)
    of_sum = (rstd * inner).to(total.dtype)
    if grad_sum is not None:
        of_sum = of_sum + grad_sum
    rows = tuple(range(total.dim() - n_last))
    of_weight, of_bias = (
        (t.sum(rows) if rows else t).to(total.dtype) for t in (dy * hat, dy)
    )
    return of_sum, of_weight, of_bias
