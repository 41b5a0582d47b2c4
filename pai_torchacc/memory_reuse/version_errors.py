"""Torch's words for a saved tensor that was changed before backward.

They differ between versions; so torch is brought to say them of a tensor of our own,
and what belongs to that one is replaced.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.memory_reuse import data_swaps

_FURTHEST = 64
"""Nodes to look through for the one that saved its own output."""


def text(holder: Any, version: int) -> str:
    """What torch would say of the tensor in this holder, which has that version now."""
    tensor = _variable(holder)
    model = _said_of_an_output()
    sizes = ", ".join(map(str, tensor.shape))
    told = re.sub(r"\[\S+ \[3\]\]", f"[{_type(tensor.dtype)} [{sizes}]]", model)
    told = told.replace("at version 1;", f"at version {version};")
    told = told.replace("expected version 0", f"expected version {holder.version}")
    which = re.search(r", which is output 0 of (\w+),", model)
    if which is None:
        return told
    maker, clause = _maker(holder), ""
    if maker is not None:
        name, number = maker
        if "Backward" not in which[1]:
            name = re.sub(r"Backward\d*$", "", name)
        clause = f", which is output {number} of {name},"
    return told.replace(which[0], clause)


def _variable(holder: Any) -> Tensor:
    """The tensor whose sizes torch would tell."""
    origin = None if holder.origin is None else holder.origin()
    if origin is None or data_swaps.is_output(holder, origin):
        return holder.tensor
    return origin


class _Keeper(torch.autograd.Function):
    """Saves any tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return x * 1


def _type(dtype: torch.dtype) -> str:
    """Torch's name for tensors of this dtype, in this connection."""
    from pai_torchacc.memory_reuse import hooks

    with hooks.none_in_this_thread(), torch.enable_grad():
        kept = torch.zeros(3, dtype=dtype, device="cpu")
        node = _Keeper.apply(torch.zeros(3).requires_grad_(), kept).grad_fn
        kept.zero_()
        try:
            node.saved_tensors  # noqa: B018
        except RuntimeError as error:
            found = re.search(r"\[(\S+) \[3\]\]", str(error))
            if found:
                return found[1]
    return kept.type()


def _said_of_an_output() -> str:
    """Of the output of a sigmoid with three elements, changed once."""
    from pai_torchacc.memory_reuse import hooks

    with hooks.none_in_this_thread(), torch.enable_grad():
        changed = torch.zeros(3, dtype=torch.float32, device="cpu").requires_grad_()
        changed = changed.sigmoid()
        node = changed.grad_fn
        with torch.no_grad():
            changed.add_(1)
        try:
            node._saved_result  # noqa: B018
        except RuntimeError as error:
            return str(error)
    return "one of the variables needed for gradient computation has been modified"


def _maker(holder: Any) -> tuple[str, int] | None:
    """Name and output number of the node that torch would name."""
    origin = holder.tensor if holder.origin is None else holder.origin()
    if not isinstance(origin, Tensor) or origin.grad_fn is None:
        return None
    saver = _saver(origin.grad_fn, holder)
    return (saver or origin.grad_fn).name(), origin.output_nr


def _saver(node: Any, holder: Any) -> Any:
    """The node behind the tensor that saved its own output in this holder."""
    ahead, seen = [node], 0
    while ahead and seen < _FURTHEST:
        node, seen = ahead.pop(0), seen + 1
        for name in dir(type(node)):
            if name.startswith("_raw_saved_result") and _holds(node, name, holder):
                return node
        ahead += [n for n, _ in node.next_functions if n is not None]
    return None


def _holds(node: Any, name: str, holder: Any) -> bool:
    try:
        return getattr(node, name).data is holder
    except (AttributeError, RuntimeError):
        return False
