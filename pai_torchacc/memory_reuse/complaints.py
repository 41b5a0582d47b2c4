"""Torch's words for a saved tensor that was changed before backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_FURTHEST = 64
"""Nodes to look through for the one that saved its own output."""


def text(holder: Any, version: int) -> str:
    """As ``SavedVariable::unpack`` has it.

    Source: torch/csrc/autograd/saved_variable.cpp.
    """
    tensor = holder.tensor
    sizes = ", ".join(map(str, tensor.shape))
    message = (
        "one of the variables needed for gradient computation has been modified by an "
        f"inplace operation: [{tensor.type()} [{sizes}]]"
    )
    maker = _maker(holder)
    if maker is not None:
        message += f", which is output {maker[1]} of {maker[0]},"
    message += f" is at version {version}; expected version {holder.version} instead."
    if torch.is_anomaly_enabled():
        return (
            f"{message} Hint: the backtrace further above shows the operation that "
            "failed to compute its gradient. The variable in question was changed in "
            "there or anywhere later. Good luck!"
        )
    return (
        f"{message} Hint: enable anomaly detection to find the operation that failed "
        "to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
    )


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
            if name.startswith("_raw_saved_"):
                raw = getattr(node, name)
                if getattr(raw, "data", None) is holder:
                    return node
        ahead += [n for n, _ in node.next_functions if n is not None]
    return None
