"""What happens where somebody trains a quantized model: a warning, once a call."""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from typing import Any

from torch import nn

_TEXT = (
    "the model has int8 weights, which do not train: gradients reach inputs and biases "
    "only. pai_torchacc.dequantize_model(model) brings trainable weights back"
)

_last: dict[str, Any] = {"call": None, "root": lambda: None, "seen": set()}


def warn(module: nn.Module) -> None:
    """Warn for the call of ``train()`` that has come to this module."""
    frame: Any = sys._getframe(1)
    depth = 2
    outermost = frame
    while frame is not None and _is_train(frame):
        outermost = frame
        frame, depth = frame.f_back, depth + 1
    # A frame that is gone leaves its address to others: the model tells them apart.
    root = outermost.f_locals.get("self", module)
    call = (threading.get_ident(), id(outermost))
    is_same = call == _last["call"] and root is _last["root"]()
    if is_same and id(module) not in _last["seen"]:
        _last["seen"].add(id(module))
        return
    _last.update(call=call, root=weakref.ref(root), seen={id(module)})
    warnings.warn(_TEXT, stacklevel=depth)


def _is_train(frame: Any) -> bool:
    return frame.f_code.co_name == "train" and isinstance(
        frame.f_locals.get("self"), nn.Module
    )
