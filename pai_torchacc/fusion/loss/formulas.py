"""Gradients of cross-entropy by torch's own operators, differentiable once more."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NONE, MEAN, SUM = range(3)
"""Codes of the reductions, as torch numbers them."""


def total_gradient(
    grad: Tensor | None, grad_p: Tensor | None, p: Tensor, *rest: Any
) -> Tensor | None:
    """Gradient of the logits from those of the loss and of the softmax p.

    Logits may have any shape that torch allows, classes first or second.
    """
    axis = min(p.dim() - 1, 1)
    total = None
    if grad is not None:
        rows = gradient(grad.reshape(-1), *_as_rows(p, axis, *rest))
        turned = p.movedim(axis, -1).shape
        total = rows.reshape(turned).movedim(-1, axis)
    if grad_p is None:
        return total
    through_p = p * (grad_p - (grad_p * p).sum(axis, keepdim=True))
    return through_p if total is None else total + through_p


def _as_rows(p: Tensor, axis: int, target: Tensor, *rest: Any) -> tuple[Any, ...]:
    """Return p as [n, classes] and the target to go with it."""

    def turned(t: Tensor) -> Tensor:
        return t.movedim(axis, -1).reshape(-1, t.shape[axis])

    is_index = not target.is_floating_point()
    return turned(p), target.reshape(-1) if is_index else turned(target), *rest


def stock() -> Any:
    """Torch's own cross_entropy_loss, whether or not the stand-in is in its place."""
    stand_in = torch._C._nn.cross_entropy_loss
    return getattr(stand_in, "stock", stand_in)


def gradient(
    grad: Tensor,
    p: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    smoothing: float,
) -> Tensor:
    """Gradient of logits [n, classes] from their softmax p, differentiable.

    grad has n elements or one. With u the weights of the classes in a row's loss, which
    is ``-sum(u * log_softmax(x))``, it is ``p * sum(u) - u`` times what the row counts.
    """
    n, classes = p.shape
    w = p.new_ones(classes) if weight is None else weight.to(p.dtype)
    if target.is_floating_point():
        u = (target.to(p.dtype) * (1 - smoothing) + smoothing / classes) * w
        rows = grad / n if reduction == MEAN else grad
        counted = p.new_ones(n, dtype=torch.bool)
    else:
        counted = target != ignore_index
        index = torch.where(counted, target, 0)
        hot = torch.nn.functional.one_hot(index, classes).to(p.dtype)
        own = w[index]
        u = (1 - smoothing) * hot * own.unsqueeze(1) + smoothing / classes * w
        rows = grad / (own * counted).sum() if reduction == MEAN else grad
    rows = torch.where(counted, rows, 0).unsqueeze(1)
    return (p * u.sum(1, keepdim=True) - u) * rows
