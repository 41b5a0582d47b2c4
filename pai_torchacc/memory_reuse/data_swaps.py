"""Saved tensors that a program has given other memory since.

``tensor.data = other`` changes no version. Torch keeps an input of a node as the very
tensor, and so computes gradients with what it holds by then; an output it keeps by its
memory, and so computes with what was saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc.memory_reuse import recipes

_RAW = "_raw_saved_"

INPUTS = frozenset((
    "self", "other", "input", "weight", "bias", "mat1", "mat2", "batch1", "batch2",
    "tensor1", "tensor2", "vec", "vec1", "vec2", "mask", "condition", "target",
    "exponent",
))  # fmt: skip
"""What torch's nodes call inputs that they save."""

_ARGUMENTS = INPUTS | {"result1", "result2", "result3"}
"""What they save that is not their first output."""


def saves_outputs(kind: type) -> bool:
    """Whether nodes of this type may save the first tensor that they have made.

    Nodes of other people's do not tell what they save.
    """
    if "Backward" not in kind.__name__:
        return True
    saved = [name for name in dir(kind) if name.startswith(_RAW)]
    return not all(name.removeprefix(_RAW) in _ARGUMENTS for name in saved)


def current(holder: Any, origin: Any) -> Tensor:
    """What torch would have in place of the holder, which took it from ``origin``."""
    with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
        if _is_same(holder.tensor, origin) or is_output(holder, origin):
            return holder.tensor
    return origin


def is_output(holder: Any, origin: Any) -> bool:
    """Whether the node that made a tensor has saved it in this holder."""
    node = origin.grad_fn
    is_view = origin._base is not None
    if is_view and type(recipes.behind_views(node)).__name__ == "CopySlices":
        return True  # by a node that does not show
    return name_in(node, holder) != ""


def name_in(node: Any, holder: Any) -> str:
    """As what a node has saved the tensor in this holder; empty if it has not."""
    names = (name for name in dir(type(node)) if name.startswith(_RAW))
    return next((n.removeprefix(_RAW) for n in names if _has(node, n, holder)), "")


def _has(node: Any, name: str, holder: Any) -> bool:
    try:
        saved = getattr(node, name)
        several = saved if isinstance(saved, tuple | list) else (saved,)
        return any(one is not None and one.data is holder for one in several)
    except (AttributeError, RuntimeError):  # it has let go of it
        return False


def _is_same(one: Tensor, other: Tensor) -> bool:
    try:
        return (
            one.untyped_storage()._cdata == other.untyped_storage()._cdata
            and one.storage_offset() == other.storage_offset()
            and one.dtype == other.dtype
            and one.size() == other.size()
            and one.stride() == other.stride()
        )
    except RuntimeError:  # of those without memory of their own
        return True
