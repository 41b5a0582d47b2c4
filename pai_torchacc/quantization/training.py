"""What happens where somebody trains a quantized model: a warning.

One for a call of ``train()``; one for an optimizer that holds parameters which
quantization has taken out of a model, and steps what no model uses any more. Of that
torch's global hook before steps tells, from the first such parameter on and while the
switch is on; nothing is kept alive by it.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from pai_torchacc.quantization.operators import kernels

_TEXT = (
    "the model has quantized weights, which do not train: gradients reach inputs and "
    "biases only. pai_torchacc.dequantize_model(model) brings trainable weights back"
)

_removed: Any = WeakIdKeyDictionary()
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[Any] = []

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


def install() -> None:
    """Watch, if there is anything to watch for and the switch is on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    if kernels and not _registered and len(_removed):
        _registered.append(register_optimizer_step_pre_hook(_before_step))


def remove() -> None:
    """Stop watching."""
    while _registered:
        _registered.pop().remove()


def note_removed(parameter: nn.Parameter) -> None:
    """A model no longer has this parameter."""
    _removed[parameter] = True
    install()


def note_restored(parameter: nn.Parameter) -> None:
    """A model has it again."""
    if parameter in _removed:
        del _removed[parameter]


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or optimizer in _warned:
        return
    groups = optimizer.param_groups
    n = sum(p in _removed for group in groups for p in group["params"])
    if n:
        _warned.add(optimizer)
        warnings.warn(
            f"this {type(optimizer).__name__} holds {n} parameters that quantize_model "
            "has taken out of a model: stepping them trains nothing. Make a new "
            "optimizer, or call pai_torchacc.dequantize_model(model) to train",
            stacklevel=4,
        )
