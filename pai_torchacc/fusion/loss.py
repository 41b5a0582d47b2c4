"""Cross-entropy in one pass forward and one backward.

The stand-in replaces ``torch._C._nn.cross_entropy_loss``, which
``torch.nn.functional.cross_entropy`` and the loss modules call, so that names imported
before the switch are served as well. :class:`CrossEntropy` is the node in the graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.node import lean_apply
from pai_torchacc.fusion.shadow import run

NONE, MEAN, SUM = range(3)
"""Codes of the reductions, as torch numbers them."""


class CrossEntropy(torch.autograd.Function):
    """The loss of logits [n, classes], with its gradient.

    Keeps the softmax of the logits, which is an output of the node, so that a second
    derivative finds its way through it, and not the logits: as with stock, a program
    may overwrite them once it has the loss.
    """

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, x: Tensor, target: Tensor, weight: Tensor | None, *options: Any
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss and the softmax.

        options are reduction, ignore_index, label smoothing, and the kernel row.
        """
        result = run(
            "cross_entropy",
            _host.load().cross_entropy_forward,
            (x, target, weight, *options),
            lambda: (stock()(x, target, weight, *options[:3]), torch.softmax(x, 1)),
        )
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.save_for_backward(result[1], target, weight)
        return result

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None, grad_p: Tensor | None = None) -> Any:
        """Return the gradient of x."""
        kept = *ctx.saved_tensors, *ctx.options
        if torch.compiler.is_compiling():  # by compiled autograd
            total = total_gradient(grad, grad_p, *kept[:-1])
        elif grad is not None and grad_p is None and not torch.is_grad_enabled():
            keeps = torch._C._autograd._get_current_graph_task_keep_graph()
            total = run(
                "cross_entropy_backward",
                _host.load().cross_entropy_backward,
                (*kept, grad.contiguous(), not keeps),
                lambda: total_gradient(grad, None, *kept[:-1]),
            )
        else:
            _host.load().refuse("cross_entropy_backward", "gradient not supported")
            total = total_gradient(grad, grad_p, *kept[:-1])
        return total, None, None, None, None, None, None


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
    w = p.new_ones(classes) if weight is None else weight
    if target.is_floating_point():
        u = (target * (1 - smoothing) + smoothing / classes) * w
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


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-in in place; the ledger takes it away."""
    own = stock()
    c.lend(cross_entropy_node=lean_apply(CrossEntropy), stock_cross_entropy=own)
    stand_in = _cross_entropy(c, own)
    ledger.set_attribute(torch._C._nn, "cross_entropy_loss", stand_in)
    table = torch.jit._builtins._get_builtin_table()
    ledger.set_item(table, id(stand_in), "aten::cross_entropy_loss")


def _cross_entropy(c: Any, stock: Any) -> Any:
    accelerated = c.cross_entropy

    @traced_as(stock)
    def cross_entropy_loss(
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        reduction: int = NONE,  # as torch parses its own default
        ignore_index: int = -100,
        label_smoothing: float = 0.0,
    ) -> Tensor:
        try:
            return accelerated(
                input, target, weight, reduction, ignore_index, label_smoothing
            )
        except BaseException as error:
            hide(error)
            raise

    cross_entropy_loss.stock = stock
    cross_entropy_loss.__module__ = stock.__module__  # pickles as stock's name
    cross_entropy_loss.__qualname__ = stock.__qualname__
    return cross_entropy_loss
