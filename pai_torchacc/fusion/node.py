"""Nodes of ours in autograd's graph, which lean call paths make in the extension."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import Function


def lean_apply(node: type[Function]) -> Callable[..., Any]:
    """``node.apply`` without its look for functorch, which a lean path has had."""
    return super(Function, node).apply


def install(c: Any) -> None:
    """Tell the extension how to ask for hooks on what nodes save.

    Under such hooks it makes no nodes.
    """
    c.node_install(torch._C._autograd._top_saved_tensors_default_hooks)
