"""Attention with dropout, which torch computes operator by operator on CPUs.

``F.scaled_dot_product_attention`` gets a stand-in that looks at calls with dropout
alone. What is kept is drawn from the program's generator as torch draws it, so that
both the weights that are dropped and what is drawn next are stock's; all else is one
kernel. :class:`AttentionDropout` is the node in the graph.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled, traced_as
from pai_torchacc.fusion.node import lean_apply

NAME = "scaled_dot_product_attention"

_P_PLACE = 4
"""Of ``dropout_p`` among the arguments."""


class Call(NamedTuple):
    """What a call is about besides queries, keys and values."""

    mask: Tensor | None
    p: float
    is_causal: bool
    scale: float | None


class AttentionDropout(torch.autograd.Function):
    """Attention whose weights were dropped, with its gradients."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        made: tuple[Tensor, Tensor, Tensor],
        call: Call,
    ) -> Tensor:
        """Hand out the result; made is that with its sums, and what is kept.

        The result may be changed in place, since torch's nodes do not need it either.
        """
        ctx.set_materialize_grads(False)
        y, log_sums, kept = made
        ctx.call, ctx.y, ctx.version = call, y.detach(), y._version
        ctx.save_for_backward(q, k, v, log_sums, kept, call.mask)
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of q, k and v."""
        if grad is None:
            return (None,) * 5
        q, k, v, log_sums, kept, mask = ctx.saved_tensors
        call: Call = ctx.call._replace(mask=mask)
        found = None
        is_differentiable = torch.is_grad_enabled() or torch.compiler.is_compiling()
        if not is_differentiable and ctx.y._version == ctx.version:
            found = _host.load().attention_dropout_gradients(
                *(q, k, v, ctx.y, grad, log_sums, kept), *call
            )
        if found is None:
            found = _gradients(ctx.needs_input_grad, grad, q, k, v, kept, call)
        return (*found, None, None)


def _gradients(
    needs: tuple[bool, ...],
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    kept: Tensor,
    call: Call,
) -> tuple[Tensor | None, ...]:
    """By torch's operators, differentiable where gradients are to be."""
    is_differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that a graph ends here unless it is to go on.
        tensors = [
            t.view_as(t) if is_differentiable else t.detach().requires_grad_()
            for t in (q, k, v)
        ]
        y = by_operators(*tensors, kept, call)
        wanted = [t for t, is_needed in zip(tensors, needs, strict=False) if is_needed]
        found = iter(
            torch.autograd.grad(y, wanted, grad, create_graph=is_differentiable)
        )
    return tuple(next(found) if is_needed else None for is_needed in needs[:3])


def by_operators(q: Tensor, k: Tensor, v: Tensor, kept: Tensor, call: Call) -> Tensor:
    """What torch computes once it has drawn, from what is kept."""
    if k.shape[1] != q.shape[1]:
        shared = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if call.scale is None else call.scale
    root = math.sqrt(abs(scale))
    scores = (q * math.copysign(root, scale)) @ (k.mT * root)
    mask = call.mask
    if call.is_causal:
        mask = _added(torch.ones(scores.shape[-2:], dtype=torch.bool).tril())
    if mask is not None:
        scores = scores + mask
    weights = torch._safe_softmax(scores, -1)
    return (weights * (kept / (1 - call.p))) @ v


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-in in place; the ledger takes it away."""
    stock = getattr(torch._C._nn, NAME)
    stand_in = _stand_in(c, stock)
    ledger.set_attribute(F, NAME, stand_in)
    table = torch.jit._builtins._get_builtin_table()
    ledger.set_item(table, id(stand_in), f"aten::{NAME}")


def _stand_in(c: Any, stock: Any) -> Any:
    attend = _attend(c)

    @traced_as(stock)
    def scaled_dot_product_attention(*args: Any, **options: Any) -> Tensor:
        p = args[_P_PLACE] if len(args) > _P_PLACE else options.get("dropout_p", 0.0)
        found = None
        if p.__class__ is float and p > 0.0:
            try:
                found = attend(args, options)
            except BaseException as error:
                hide(error)
                raise
        return stock(*args, **options) if found is None else found

    scaled_dot_product_attention.stock = stock
    scaled_dot_product_attention.__qualname__ = stock.__qualname__
    scaled_dot_product_attention.__module__ = stock.__module__
    scaled_dot_product_attention.__doc__ = stock.__doc__
    return scaled_dot_product_attention


def _attend(c: Any) -> Any:
    """What takes a call's arguments and gives its result, or None for stock."""
    node, draw = lean_apply(AttentionDropout), c.attention_dropout
    is_plain, may_multiply = c.thread_is_plain, torch._C._get_math_sdp_enabled

    def attend(args: tuple[Any, ...], options: dict[str, Any]) -> Tensor | None:
        try:
            tensors, call, shares = _read(*args, **options)
        except TypeError:  # torch refuses these in its own words
            return None
        if not may_multiply():
            return None
        if call.mask.__class__ is Tensor and call.mask.dtype is torch.bool:
            if not is_plain():
                return None
            call = call._replace(mask=_added(call.mask))
        made = draw(*tensors, *call, shares)
        if made is None:
            return None
        if len(made) == 1:
            return by_operators(*tensors, *made, call)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            if call.mask is not None:  # which torch's nodes do not keep
                call = call._replace(mask=call.mask.clone())
            result: Tensor = node(*tensors, made, call)
            return result
        y: Tensor = made[0]
        return y

    return attend


def _read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[tuple[Tensor, Tensor, Tensor], Call, bool]:
    """A call's arguments, as torch takes them."""
    call = Call(attn_mask, dropout_p, is_causal, scale)
    return (query, key, value), call, enable_gqa


def _added(mask: Tensor) -> Tensor:
    """What a mask of truth values adds to scores."""
    added = torch.zeros(mask.shape, dtype=torch.float32)
    return added.masked_fill_(mask.logical_not(), -math.inf)
