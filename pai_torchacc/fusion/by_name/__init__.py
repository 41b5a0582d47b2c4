"""Operators that programs call by name; and what they share.

Each saves a pass over the tensors, and on CUDA a launch. Under ``torch.compile``, in
transforms and where no row takes a call they are torch's own operators, one behind the
other.

A node of theirs gets what has been computed in a tuple: a tensor that is an argument
would come back as a view, which a program may not write to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from pai_torchacc import _host
from pai_torchacc.fusion.node import lean_apply
from pai_torchacc.fusion.shadow import run

ALONE, TRAINED, KERNEL = range(3)
"""Where a call comes from, ptac_lean_from of csrc: a program, without a gradient or
with one; or torch's dispatcher, below autograd."""


def wants_gradient(*given: Any) -> bool:
    """Whether a call of these tensors, and what else there is, will have a node."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in given
    )


def origin(*given: Any) -> int:
    """``TRAINED`` or ``ALONE``."""
    return TRAINED if wants_gradient(*given) else ALONE


def can_be_ours(op: str, *given: Any) -> bool:
    """Whether a call may be served: outside of compilers, of tensors on CPU or CUDA.

    A node of ours saves other tensors than torch's do. So there is none where hooks
    look at what is saved, such as those of ``torch.utils.checkpoint``, and none of
    tensors made in inference mode, which cannot be saved.
    """
    x = given[0]
    if torch.compiler.is_compiling() or type(x) is not Tensor:
        return False
    if not (x.is_cpu or x.is_cuda):
        return False
    try:
        _host.learnt()
    except _host.Unavailable:
        return False
    if not wants_gradient(*given):
        return True
    c = _host.load()
    why = None
    if c.saving_is_hooked():
        why = "hooks"
    elif any(isinstance(t, Tensor) and t.is_inference() for t in given):
        why = "gradient not supported"
    if why is not None:
        c.refuse(op, why)
    return why is None


def behind_node(
    node: type[Function], given: tuple[Any, ...], made: tuple[Any, ...], *rest: Any
) -> tuple[Any, ...]:
    """What was made of tensors, by a node where a gradient is wanted.

    The node's ``forward`` takes them, ``made`` and the rest, and returns a tuple.
    """
    if not wants_gradient(*given):
        return made
    found: tuple[Any, ...] = lean_apply(node)(*given, made, *rest)
    return found


def in_tuple(found: Tensor | None) -> tuple[Tensor] | None:
    """What a function of the extension gives, as others do."""
    return None if found is None else (found,)


def gradients(
    op: str,
    ours: Callable[..., Any],
    args: tuple[Any, ...],
    stock: Callable[[], tuple[Any, ...]],
) -> tuple[Any, ...]:
    """Gradients by the extension, or by torch's operators where they have their own."""
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return stock()
    found: tuple[Any, ...] = run(op, ours, args, stock)
    return found
