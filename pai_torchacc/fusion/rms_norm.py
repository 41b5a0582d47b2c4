"""RMSNorm on the CPU, behind ``torch.rms_norm`` and ``nn.RMSNorm``.

Torch computes it there of several operators, so that no override reaches it. A
stand-in for ``torch.rms_norm``, which ``torch.nn.functional.rms_norm`` calls, leads to
one row of the extension; :class:`RmsNorm` is the node in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.node import lean_apply, named_like
from pai_torchacc.fusion.shadow import checked, run


class RmsNorm(torch.autograd.Function):
    """``x * rstd * weight``, where rstd is of each row."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        made: tuple[Tensor, Tensor],
        row: str,
        n_last: int,
        eps: float,
    ) -> Tensor:
        """Hand out what the row has made; made is that and rstd."""
        y, rstd = made
        ctx.set_materialize_grads(False)
        ctx.row, ctx.n_last, ctx.eps = row, n_last, eps
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of x and the weight."""
        x, weight, rstd = ctx.saved_tensors
        wants = ctx.needs_input_grad[:2]
        n_last: int = ctx.n_last
        done: Sequence[Tensor | None]

        def by_torch() -> tuple[Tensor | None, ...]:
            return gradients(grad, x, weight, n_last, ctx.eps, wants)

        if grad is None:
            done = None, None
        elif torch.is_grad_enabled() or torch.compiler.is_compiling():
            done = by_torch()
        else:
            done = run(
                "rms_norm_backward",
                _host.load().rms_norm_gradient,
                (ctx.row, grad, x, rstd, weight, n_last, *wants),
                by_torch,
            )
        return *done, None, None, None, None


def gradients(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    n_last: int,
    eps: float,
    wants: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """By torch's operators, differentiably, those that are wanted."""
    dims = tuple(range(-n_last, 0))
    rstd = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    normal = x * rstd
    of_x = of_weight = None
    if wants[0]:
        g = grad if weight is None else grad * weight
        of_x = (g - normal * (g * normal).mean(dims, keepdim=True)) * rstd
    if wants[1] and weight is not None:
        of_weight = (grad * normal).reshape(-1, *weight.shape).sum(0)
    return of_x, of_weight


def _checked(
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    is_trained: bool,
) -> Any:
    """What the extension makes, compared with stock's; with the row where trained."""
    c = _host.load()
    row = ""

    def ours(*args: Any) -> Any:
        nonlocal row
        found = c.rms_norm_parts(*args)
        if found is not None and is_trained:
            found, row = found
        return found

    def stock() -> Any:
        y = torch._C._VariableFunctions.rms_norm(x, shape, weight, eps)
        if not is_trained:
            return y
        rstd = torch._fused_rms_norm(x, shape, weight, eps)[1]
        return y, rstd.reshape(-1)

    with torch.no_grad():
        found = checked("rms_norm", ours, (x, shape, weight, eps, is_trained), stock)
    return (found, row) if is_trained and found is not None else found


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-in in place; the ledger takes it away."""
    stock = torch._C._VariableFunctions.rms_norm
    c.lend(
        rms_norm_node=lean_apply(named_like(RmsNorm, "Mul")),
        rms_norm_checked=_checked,
        stock_rms_norm=stock,
    )
    stand_in = _stand_in(c.rms_norm, stock)
    ledger.set_attribute(torch, "rms_norm", stand_in)
    table = torch.jit._builtins._get_builtin_table()
    ledger.set_item(table, id(stand_in), "aten::rms_norm")


def _stand_in(accelerated: Any, stock: Any) -> Any:
    @traced_as(stock)
    def rms_norm(
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> Tensor:
        try:
            result: Tensor = accelerated(input, normalized_shape, weight, eps)
        except BaseException as error:
            hide(error)
            raise
        return result

    rms_norm.stock = stock  # type: ignore[attr-defined]
    rms_norm.__qualname__ = stock.__qualname__
    rms_norm.__module__ = stock.__module__
    return rms_norm
