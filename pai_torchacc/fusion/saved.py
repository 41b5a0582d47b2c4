"""Nodes of ours in the graph, and hooks on the tensors that nodes save."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def unless_hooked(c: Any, op: str, apply: Callable[..., Any]) -> Callable[..., Any]:
    """``apply``, which gives None for stock while tensors are saved through hooks.

    Hooks such as those of ``torch.utils.checkpoint`` match what forward saves with what
    its repetition saves, one by one. Our nodes save other tensors than torch's, so a
    switch between the two, or a quarantine, must not decide which nodes there are.
    """
    top_hooks = torch._C._autograd._top_saved_tensors_default_hooks

    def apply_unless_hooked(*args: Any) -> Any:
        if top_hooks(True) is None:
            return apply(*args)
        c.refuse(op, "hooks")
        return None

    return apply_unless_hooked
