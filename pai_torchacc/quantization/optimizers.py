"""Optimizers that hold parameters which quantization has taken out of a model.

They step what no model uses any more. torch's global hook before steps tells, from the
first such parameter on and while the switch is on; nothing is kept alive by it.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakIdKeyDictionary

from pai_torchacc.quantization.operators import kernels

_removed: Any = WeakIdKeyDictionary()
_warned: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[Any] = []


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
