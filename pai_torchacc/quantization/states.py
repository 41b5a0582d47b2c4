"""Quantized checkpoints: their keys and checks, and how float models take them.

By hand, or by loading while the switch is on.

Without this package a strict load of such a checkpoint fails, since ``weight`` is
missing from it.
"""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc._ledger import Ledger
from pai_torchacc.quantization import quantizer
from pai_torchacc.quantization.quantizer import FORMATS, INT8, WEIGHTS, Format

_LOADERS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)


def saved_keys(prefix: str, name: str, of: Format = INT8) -> tuple[str, str, str]:
    """Names in a state dict of a quantized weight, its scales and its record."""
    return f"{prefix}{name}_{of.name}", f"{prefix}{name}_scale", f"{prefix}quantization"


def check_shape(key: str, tensor: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError, in stock's words, for what is no tensor of this shape."""
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f'While copying the parameter named "{key}", expected torch.Tensor or '
            f"Tensor-like object from checkpoint but received {type(tensor)}"
        )
    if tensor.shape != shape:
        raise ValueError(
            f"size mismatch for {key}: copying a param with shape {tensor.shape} from "
            f"checkpoint, the shape in current model is {torch.Size(shape)}."
        )


def check(
    key: str, plain: Any, scale: Any, shape: tuple[int, ...] | None, of: Format = INT8
) -> None:
    """Raise ValueError where these are no weight of a format, and scales, of a shape.

    Without a shape: of any.
    """
    if shape is None:
        shape = getattr(plain, "shape", ())
    own = f"{key}_{of.name}"
    for name, tensor, sizes, dtype in (
        (own, plain, shape, of.dtype),
        (f"{key}_scale", scale, shape[:1], torch.float32),
    ):
        check_shape(name, tensor, sizes)
        if tensor.dtype != dtype or not sizes:
            raise ValueError(
                f"{name} should be {dtype} [n, ...], not {tensor.dtype} {list(sizes)}"
            )
    if plain.is_meta or scale.is_meta:
        return
    if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
        raise ValueError(f"{key}_scale has values that are not finite and positive")
    if of.has_others(plain):
        wrong = "NaN" if of.dtype.is_floating_point else f"values below -{of.largest}"
        raise ValueError(f"{own} has {wrong}")


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
        of = _format_of(key)
        if of is not None:
            prefix, dot, name = key.removesuffix(f"_{of.name}").rpartition(".")
            plain, scale, record = saved_keys(prefix + dot, name, of)
            if scale in state_dict:
                scale_of[plain] = state_dict[scale], of
                left_out |= {scale, record}
    for key, value in state_dict.items():
        if key in scale_of:
            scale, of = scale_of[key]
            name = key.removesuffix(f"_{of.name}")
            same = (_identity(value), _identity(scale))
            if same not in made:
                made[same] = _dequantized(name, value, scale, of)
            found[name] = made[same]
        elif key not in left_out:
            found[key] = value
    return found


def _format_of(key: Any) -> Format | None:
    """Of the weight under this name."""
    for name, of in FORMATS.items():
        if isinstance(key, str) and key.endswith(f"weight_{name}"):
            return of
    return None


def _identity(tensor: Any) -> tuple[Any, ...]:
    if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.numel():
        return (id(tensor),)
    return (tensor.data_ptr(), tensor.shape, tensor.stride())


def _dequantized(name: str, plain: Any, scale: Any, of: Format) -> Tensor:
    """``plain * scale`` for each output channel, or ValueError."""
    with torch.no_grad():
        check(name, plain, scale, None, of)
        return quantizer.dequantize(plain, scale)


def install(ledger: Ledger) -> None:
    """Have float modules take quantized checkpoints; the ledger takes it back."""
    for cls in _LOADERS:
        ledger.set_attribute(cls, "_load_from_state_dict", _loader(cls))


def _loader(cls: type[nn.Module]) -> Any:
    own = vars(cls).get("_load_from_state_dict")

    @functools.wraps(nn.Module._load_from_state_dict)
    def _load_from_state_dict(
        self: Any, state_dict: Any, prefix: str, *rest: Any, **more: Any
    ) -> None:
        errors = more["error_msgs"] if "error_msgs" in more else rest[-1]
        for name, of in itertools.product(WEIGHTS, FORMATS.values()):
            key = f"{prefix}{name}_{of.name}"
            if key in state_dict and name in self._parameters:
                _make_float(state_dict, prefix, name, of, errors)
        if own is not None:
            own(self, state_dict, prefix, *rest, **more)
        else:
            super(cls, self)._load_from_state_dict(state_dict, prefix, *rest, **more)

    return _load_from_state_dict


def _make_float(
    state_dict: Any, prefix: str, name: str, of: Format, errors: list[str]
) -> None:
    key, saved = prefix + name, saved_keys(prefix, name, of)
    plain, scale, _ = (state_dict.get(one) for one in saved)
    if saved[1] not in state_dict or key in state_dict:
        return
    try:
        weight = _dequantized(key, plain, scale, of)
    except ValueError as error:
        errors.append(str(error))
        return
    for gone in saved:
        state_dict.pop(gone, None)
    state_dict[key] = weight
