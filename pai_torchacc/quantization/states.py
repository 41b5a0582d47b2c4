"""Int8 checkpoints for float models: by hand, or by loading while the switch is on.

Without this package a strict load of such a checkpoint fails, since ``weight`` is
missing from it.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc._ledger import Ledger
from pai_torchacc.quantization import quantizer

_LOADERS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)
_SUFFIX = "_int8"


def dequantize_state_dict(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """See :func:`pai_torchacc.dequantize_state_dict`."""
    if not isinstance(state_dict, Mapping):
        kind = type(state_dict).__name__
        raise TypeError(f"state_dict is a dict of tensors, not {kind}")
    found: dict[str, Any] = OrderedDict()
    if hasattr(state_dict, "_metadata"):
        found._metadata = state_dict._metadata  # type: ignore[attr-defined]
    made: dict[tuple[Any, ...], Tensor] = {}
    scale_of, left_out = {}, set()
    for key in state_dict:
        if isinstance(key, str) and key.endswith("weight_int8"):
            prefix, dot, name = key.removesuffix(_SUFFIX).rpartition(".")
            int8, scale, record = quantizer.saved_keys(prefix + dot, name)
            if scale in state_dict:
                scale_of[int8] = state_dict[scale]
                left_out |= {scale, record}
    for key, value in state_dict.items():
        if key in scale_of:
            scale, name = scale_of[key], key.removesuffix(_SUFFIX)
            same = (_identity(value), _identity(scale))
            if same not in made:
                made[same] = _dequantized(name, value, scale)
            found[name] = made[same]
        elif key not in left_out:
            found[key] = value
    return found


def _identity(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.shape, tensor.stride())


def _dequantized(name: str, int8: Any, scale: Any) -> Tensor:
    """``int8 * scale`` for each output channel, or ValueError."""
    with torch.no_grad():
        quantizer.check(name, int8, scale, None)
        return quantizer.dequantize(int8, scale)


def install(ledger: Ledger) -> None:
    """Have float modules take int8 checkpoints; the ledger takes it back."""
    for cls in _LOADERS:
        ledger.set_attribute(cls, "_load_from_state_dict", _loader(cls))


def _loader(cls: type[nn.Module]) -> Any:
    own = vars(cls).get("_load_from_state_dict")

    @functools.wraps(nn.Module._load_from_state_dict)
    def _load_from_state_dict(
        self: Any, state_dict: Any, prefix: str, *rest: Any, **more: Any
    ) -> None:
        errors = more["error_msgs"] if "error_msgs" in more else rest[-1]
        for name in quantizer.WEIGHTS:
            if f"{prefix}{name}{_SUFFIX}" in state_dict and name in self._parameters:
                _make_float(state_dict, prefix, name, errors)
        if own is not None:
            own(self, state_dict, prefix, *rest, **more)
        else:
            super(cls, self)._load_from_state_dict(state_dict, prefix, *rest, **more)

    return _load_from_state_dict


def _make_float(state_dict: Any, prefix: str, name: str, errors: list[str]) -> None:
    key, saved = prefix + name, quantizer.saved_keys(prefix, name)
    int8, scale, _ = (state_dict.get(of) for of in saved)
    if saved[1] not in state_dict or key in state_dict:
        return
    try:
        weight = _dequantized(key, int8, scale)
    except ValueError as error:
        errors.append(str(error))
        return
    for gone in saved:
        state_dict.pop(gone, None)
    state_dict[key] = weight
