"""Nodes of ours in autograd's graph, which lean call paths make in the extension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pai_torchacc.fusion.compiled import not_compiled


def lean_apply(node: type[Function]) -> Callable[..., Any]:
    """``node.apply`` without its look for functorch, which a lean path has had."""
    return super(Function, node).apply


@functools.cache
def named_like(node: type[Function], operator: str) -> type[Function]:
    """A class like ``node`` whose nodes have the name of torch's for an operator."""
    named = type(node.__name__, (node,), {"__doc__": node.__doc__})
    backward: type = named._backward_cls  # type: ignore[attr-defined]
    backward.__name__ = f"{operator}Backward0"
    return named


def as_saved(w: Tensor | None, as_it_was: Tensor | None) -> Tensor | None:
    """A tensor that a node has saved, with the values that it had then.

    ``as_it_was`` is a view that was taken of it: torch's own nodes save such views of
    weights, so that a program may set ``w.data`` to other memory before backward.
    """
    if w is None or as_it_was is None or not torch.is_grad_enabled():
        return as_it_was
    if w.data_ptr() != as_it_was.data_ptr():
        return _AsItWas.apply(w, as_it_was)
    return w


def with_values(w: Tensor, values: Tensor) -> Tensor:
    """These values, whose gradient is that of a tensor which once had them."""
    result: Tensor = _AsItWas.apply(w, values)
    return result


class _AsItWas(Function):
    """A tensor whose ``.data`` has been set since, with the values that it had."""

    @staticmethod
    @not_compiled
    def forward(ctx: Any, w: Tensor, as_it_was: Tensor) -> Tensor:
        """Return the values."""
        return as_it_was.view_as(as_it_was)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Hand the gradient on to the tensor."""
        return grad, None
