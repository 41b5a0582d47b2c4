"""Torch's errors for a saved tensor that was changed, or detached, before backward.

Their words differ between versions. So torch is brought to say them of tensors of our
own, and only the numbers and the node's name are replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from pai_torchacc.memory_reuse import data_swaps, hooks
from pai_torchacc.memory_reuse.recipes import VIEWS

_GENERIC = (
    "one of the variables needed for gradient computation has been modified by an "
    "inplace operation: [{}] is at version 1; expected version 0 instead."
)
"""For tensors that torch itself cannot describe, as jagged ones."""


def text(holder: Any, version: int, is_detached: bool) -> str | None:
    """What torch would say of the tensor in this holder, which has that version now.

    None where torch would not complain.
    """
    node = torch._C._current_autograd_node()
    name = data_swaps.name_in(node, holder)
    if is_detached and name in data_swaps.INPUTS:
        return _said_of_a_detached_input()
    if version == holder.version:
        return None
    model = _said_of_an_output()
    told = _said_of(_variable(holder))
    told = told.replace("at version 1;", f"at version {version};")
    told = told.replace("expected version 0", f"expected version {holder.version}")
    clause = re.search(r", which is output 0 of (\w+),", model)
    maker = _maker(holder, node, name) if clause else None
    if maker is None:
        return told
    by, number = maker
    if "Backward" not in clause[1]:
        by = re.sub(r"Backward\d*$", "", by)
    return told.replace(
        "] is at version", f"], which is output {number} of {by}, is at version"
    )


def _variable(holder: Any) -> Tensor:
    """The tensor whose sizes torch would tell."""
    origin = _origin(holder)
    if origin is None or data_swaps.is_output(holder, origin):
        return holder.tensor
    return origin


def _origin(holder: Any) -> Tensor | None:
    """What was saved, if somebody still has it."""
    return holder.tensor if holder.origin is None else holder.origin()


class _Keeper(torch.autograd.Function):
    """Saves any tensor but nested ones."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, kept: Tensor) -> Tensor:
        ctx.save_for_backward(kept)
        return x * 1


def _saved_by_a_function(kept: Tensor) -> Callable[[], object]:
    x = torch.zeros(3, device="cpu").requires_grad_()
    made = _Keeper.apply(x, kept)  # older torch clears its node with it
    return lambda: made.grad_fn.saved_tensors


def _saved_by_a_sine(kept: Tensor) -> Callable[[], object]:
    node = kept.requires_grad_().sin().grad_fn
    return lambda: node._saved_self


@hooks.without_any
def _said_of(tensor: Tensor) -> str:
    """Of a tensor of this type and size that was changed once."""
    for saved_by in (_saved_by_a_function, _saved_by_a_sine):
        with torch.enable_grad():
            kept = tensor.data  # with a version of its own
            try:
                unpack = saved_by(kept)
                increment_version(kept)
                unpack()
            except (RuntimeError, TypeError) as error:
                if "] is at version" in str(error):
                    return str(error)
    return _GENERIC.format(f"{tensor.type()} {list(tensor.shape)}")


@hooks.without_any
def _said_of_an_output() -> str:
    """Of the output of a sigmoid with three elements, changed once."""
    with torch.enable_grad():
        changed = torch.zeros(3, dtype=torch.float32, device="cpu").requires_grad_()
        changed = changed.sigmoid()
        node = changed.grad_fn
        increment_version(changed)
        try:
            node._saved_result  # noqa: B018
        except RuntimeError as error:
            return str(error)
    return _GENERIC


@hooks.without_any
def _said_of_a_detached_input() -> str | None:
    """Of the input of a sine, detached in place."""
    with torch.enable_grad():
        detached = torch.zeros(3, device="cpu").requires_grad_().clone()
        node = detached.sin().grad_fn
        detached.detach_()
        try:
            node(torch.zeros(3))
        except RuntimeError as error:
            return str(error)
    return None


def _maker(holder: Any, node: Any, name: str) -> tuple[str, int] | None:
    """Name and output number of the node that torch would name.

    Torch counts outputs only of those that a node has saved itself: an input is always
    output 0. ``node`` unpacks the holder, which it has saved as ``name``.
    """
    origin = _origin(holder)
    if name.startswith("result"):
        return node.name(), int(name.removeprefix("result") or 0)
    if origin is not None:
        if origin.grad_fn is None:
            return None
        number = origin.output_nr if data_swaps.is_output(holder, origin) else 0
        return origin.grad_fn.name(), number
    edge = _edge(node, name)
    if edge is None:
        return None
    return ("AsStridedBackward0" if type(edge).__name__ in VIEWS else edge.name()), 0


def _edge(node: Any, name: str) -> Any:
    """The node that made an input of this one, where that can be told."""
    makers = [n for n, _ in node.next_functions] if name in data_swaps.INPUTS else []
    made = {n for n in makers if n is not None and n.name() != "AccumulateGrad"}
    if len(made) == 1:
        return made.pop()
    at = {"self": 0, "other": 1, "mat2": 1}.get(name, len(makers))
    return makers[at] if at < len(makers) else None
