"""The operator ``pai_torchacc::cross_entropy`` in torch's dispatcher.

Its second output is what its gradient needs: the softmax of the logits; of those on
CUDA, which the gradient reads again, each row's maximum m, a constant to derivatives,
and the logarithm of the sum of exp(x - m).
``in_float32`` asks for the loss in float32 of logits of 16 bits, as autocast does: what
is compiled under autocast does not run under it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion.loss import formulas

_DEFAULTS = None, 1, -100, 0.0, False
"""Of weight, reduction, ignore_index, label_smoothing, in_float32, which torch leaves
out."""


def kernel(x: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Both outputs, by a row where one takes the call."""
    args = x, target, *rest, *_DEFAULTS[len(rest) :]
    result = _host.ask("cross_entropy_kernel", *args)
    if result is None:
        return stock(*args)
    loss, kept = result
    n = x.shape[0]
    return (loss, kept[: 2 * n].view(2, n)) if x.is_cuda else (loss, kept)


def stock(x: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Both outputs, by torch's own operators."""
    *options, in_float32 = *rest, *_DEFAULTS[len(rest) :]
    args: list[Any] = [x, target, *options]
    if in_float32:
        args[:3] = [
            t.float() if t is not None and t.is_floating_point() else t
            for t in args[:3]
        ]
    return formulas.stock()(*args), _kept(x)


def _axis(x: Tensor) -> int:
    return min(x.dim() - 1, 1)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _kept(x: Tensor) -> Tensor:
    if not x.is_cuda:
        return F.softmax(x, _axis(x))
    x, axis = x.to(_wide(x)), _axis(x)
    m = x.amax(axis, keepdim=True)
    return torch.stack([m.reshape(-1), torch.logsumexp(x - m, axis).reshape(-1)])


def fake(x: Tensor, target: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Outputs of the right sizes and dtypes."""
    weight, reduction, *_, in_float32 = *rest, *_DEFAULTS[len(rest) :]
    axis = _axis(x)
    sizes = (*x.shape[:axis], *x.shape[axis + 1 :]) if reduction == 0 else ()
    dtype = torch.float32 if in_float32 else x.dtype
    if target.is_floating_point() and not in_float32:
        for other in (target, weight):
            dtype = dtype if other is None else torch.promote_types(dtype, other.dtype)
    return x.new_empty(sizes, dtype=dtype), _kept(x)


def under_autocast(x: Tensor, target: Tensor, *rest: Any) -> Any:
    """The call that autocast on CUDA makes of one: of any floats but float64."""
    options = *rest, *_DEFAULTS[len(rest) :]
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
    with torch._C._ExcludeDispatchKeyGuard(key):
        return torch.ops.pai_torchacc.cross_entropy(
            x, target, *options[:-1], options[-1] or x.dtype != torch.float64
        )


def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradient needs."""
    x, target, weight, *options, _ = inputs
    ctx.options = options
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x if x.is_cuda else None, output[1], target, weight)


def backward(ctx: Any, grad: Any, grad_kept: Any) -> tuple[Any, ...]:
    """Gradients, by torch's own operators."""
    if any(ctx.needs_input_grad[1:3]):
        raise RuntimeError(
            "pai_torchacc::cross_entropy has gradients of its input only;"
            " pai_torchacc.ops.cross_entropy has those of target and weight as well"
        )
    x, kept, *others = ctx.saved_tensors
    if x is None:
        total = formulas.total_gradient(grad, grad_kept, kept, *others, *ctx.options)
    else:
        total = _of_logits(grad, grad_kept, x, kept, *others, *ctx.options)
    return total, *(None,) * 6


def _of_logits(grad: Any, grad_kept: Any, x: Tensor, kept: Tensor, *rest: Any) -> Any:
    axis = _axis(x)
    sizes = [n if i != axis else 1 for i, n in enumerate(x.shape)]
    m, log_sum = (t.reshape(sizes) for t in kept)
    p = torch.exp(x.to(_wide(x)) - m - log_sum)
    total = formulas.total_gradient(grad, None, p, *rest)
    if grad_kept is not None:
        through = p * grad_kept[1].reshape(sizes)
        total = through if total is None else total + through
    return None if total is None else total.to(x.dtype)
