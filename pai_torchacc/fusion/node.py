"""Nodes of ours in autograd's graph, which lean call paths make in the extension."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch.autograd import Function


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
