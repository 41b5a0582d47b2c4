"""Sums, gates and norms in torch's dispatcher: the operators of ``fusion.by_name``."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion.by_name import add_norm as norms
from pai_torchacc.fusion.by_name import pointwise
from pai_torchacc.ops.dispatcher import define

_DEVICES = "CPU", "CUDA"


def _define_pointwise(op: str, second: str) -> None:
    """``op(input, second, activation)``."""

    def stock(a: Tensor, b: Tensor, activation: int) -> Tensor:
        return pointwise.stock(op, a, b, activation)

    def kernel(a: Tensor, b: Tensor, activation: int) -> Tensor:
        made = _host.ask("pointwise", op, (a, b), activation, by_name.KERNEL)
        return stock(a, b, activation) if made is None else made[0]

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, b, ctx.activation = inputs
        ctx.save_for_backward(a, b)

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        a, b = ctx.saved_tensors
        found = pointwise.gradients(op, grad, (a, b), ctx.activation)
        of_a, of_b = found[0], found[-1]
        return of_a.sum_to_size(a.shape), of_b.sum_to_size(b.shape), None

    schema = f"{op}(Tensor input, Tensor {second}, int activation) -> Tensor"
    kernels = dict.fromkeys(_DEVICES, kernel)
    define(schema, stock, kernels, backward, setup_context)


for _op, _second in (
    ("gated_act", "value"),
    ("add_act", "residual"),
    ("bias_act", "bias"),
):
    _define_pointwise(_op, _second)


def _stock_add_norm(
    x: Tensor,
    residual: Tensor,
    n_last: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    is_rms: bool,
) -> tuple[Tensor, Tensor]:
    if is_rms and bias is not None:
        raise ValueError("rms_norm has no bias")
    total = x + residual
    shape = total.shape[total.dim() - n_last :]
    if is_rms:
        return F.rms_norm(total, shape, weight, eps), total
    return F.layer_norm(total, shape, weight, bias, eps), total


def _add_norm_kernel(
    x: Tensor,
    residual: Tensor,
    n_last: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    is_rms: bool,
) -> tuple[Tensor, Tensor]:
    made = None
    if bias is None or not is_rms:
        args = x, residual, weight, bias, n_last, eps, is_rms
        made = _host.ask("add_norm", *args, by_name.KERNEL)
    if made is None:
        return _stock_add_norm(x, residual, n_last, weight, bias, eps, is_rms)
    return made[0], made[1]


def _add_norm_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, residual, ctx.n_last, weight, bias, ctx.eps, ctx.is_rms = inputs
    ctx.sizes = x.shape, residual.shape
    ctx.has_bias = bias is not None
    ctx.set_materialize_grads(False)
    if not any(t.requires_grad for t in (x, residual)):  # as torch's sum of the two
        ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(output[1], weight)


def _add_norm_backward(ctx: Any, grad: Any, grad_sum: Any) -> tuple[Any, ...]:
    total, weight = ctx.saved_tensors
    of_sum, of_weight, of_bias = grad_sum, None, None
    if grad is not None:
        options = ctx.n_last, ctx.eps, ctx.is_rms
        of_sum, of_weight, of_bias = norms.gradients(
            grad, grad_sum, total, weight, *options
        )
    of_x, of_residual = (
        None if of_sum is None else of_sum.sum_to_size(sizes) for sizes in ctx.sizes
    )
    of_weight = of_weight if weight is not None else None
    of_bias = of_bias if ctx.has_bias else None
    return of_x, of_residual, None, of_weight, of_bias, None, None


define(
    "add_norm(Tensor input, Tensor residual, int n_last, Tensor? weight, Tensor? bias,"
    " float eps, bool is_rms) -> (Tensor, Tensor)",
    _stock_add_norm,
    dict.fromkeys(_DEVICES, _add_norm_kernel),
    _add_norm_backward,
    _add_norm_context,
)


def _stock_dropout_add(x: Tensor, residual: Tensor, p: float) -> tuple[Tensor, Tensor]:
    """The result and its mask."""
    if not 0 <= p <= 1:
        raise ValueError(f"p={p}; a probability is from 0 to 1")
    keep = 1 - p
    if p == 0:  # nothing is drawn, as by F.dropout
        return x + residual, torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0 + residual, torch.zeros_like(x, dtype=torch.bool)
    noise = torch.empty_like(x).bernoulli_(keep)
    mask = noise.bool()
    return x * noise.div_(keep) + residual, mask


def _fake_dropout_add(x: Tensor, residual: Tensor, p: float) -> tuple[Tensor, Tensor]:
    return x + residual, torch.empty_like(x, dtype=torch.bool)


def _dropout_add_kernel(x: Tensor, residual: Tensor, p: float) -> tuple[Tensor, Tensor]:
    made = None
    if 0 < p < 1 and x.is_cpu:
        made = _host.ask("dropout_add_on_cpu", x, residual, p, by_name.KERNEL)
    return _stock_dropout_add(x, residual, p) if made is None else made


def _dropout_add_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, residual, p = inputs
    ctx.sizes, ctx.keep = residual.shape, 1 - p
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[1])


def _dropout_add_backward(ctx: Any, grad: Any, grad_mask: Any) -> tuple[Any, ...]:
    (mask,) = ctx.saved_tensors
    if grad is None:
        return None, None, None
    keep = ctx.keep
    of_x = grad * mask.to(grad.dtype).div(keep) if keep > 0 else torch.zeros_like(grad)
    return of_x, grad.sum_to_size(ctx.sizes), None


define(
    "dropout_add(Tensor input, Tensor residual, float p) -> (Tensor, Tensor)",
    _stock_dropout_add,
    dict.fromkeys(_DEVICES, _dropout_add_kernel),
    _dropout_add_backward,
    _dropout_add_context,
    fake=_fake_dropout_add,
    is_random=True,
)
