"""Cross-entropy in one pass forward and one backward.

The stand-in replaces ``torch._C._nn.cross_entropy_loss``, which
``torch.nn.functional.cross_entropy`` and the loss modules call, so that names imported
before the switch are served as well. :class:`CrossEntropy` is the node in the graph; on
CUDA it is another, see :mod:`pai_torchacc.fusion.loss.on_cuda`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.loss.formulas import NONE, stock, total_gradient
from pai_torchacc.fusion.loss.on_cuda import CrossEntropyOfLogits
from pai_torchacc.fusion.node import lean_apply
from pai_torchacc.fusion.shadow import run


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


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-in in place; the ledger takes it away."""
    own = stock()
    c.lend(
        cross_entropy_node=lean_apply(CrossEntropy),
        cross_entropy_node_on_cuda=lean_apply(CrossEntropyOfLogits),
        stock_cross_entropy=own,
    )
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
