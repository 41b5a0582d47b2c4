"""A model brought to what a file says: the same layers quantized, the same numbers."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc.quantization import conversion, quantizer, selection, storage
from pai_torchacc.quantization.quantizer import FORMATS
from pai_torchacc.quantization.record import MOST_BYTES, Tie, from_tensor
from pai_torchacc.quantization.selection import CLASSES, Layer
from pai_torchacc.quantization.states import check, saved_keys
from pai_torchacc.quantization.storage import QuantizedModule


@dataclass(eq=False)
class _Weight(Layer):
    """A module that may be quantized, under one of its names."""

    is_quantized: bool = False
    """In the file."""
    record: Any = None
    """How it is computed, by the file."""

    @property
    def prefix(self) -> str:
        """Of its names in the state dict."""
        return f"{self.name}." if self.name else ""

    @property
    def key(self) -> str:
        """The name of its float weight."""
        return f"{self.prefix}{self.weight_name}"

    @property
    def keys(self) -> tuple[str, str, str]:
        """Names in the state dict when it is quantized."""
        return saved_keys(self.prefix, self.weight_name, self.format)

    def look_into(self, entries: dict[str, Any]) -> set[str]:
        """Find what it is in the file; names that it may have, there or in a model."""
        names = {self.key}
        for of in FORMATS.values():
            keys = saved_keys(self.prefix, self.weight_name, of)
            names.update(keys)
            if keys[0] in entries:
                self.format, self.is_quantized = of, True
        return names

    def file_keys(self) -> tuple[str, ...]:
        """Names in the file."""
        return self.keys if self.is_quantized else (self.key,)

    def shape(self) -> tuple[int, ...] | None:
        """Of its weight; None without one."""
        if isinstance(self.module, QuantizedModule):
            return self.module._int8.shape
        parameter = self.module._parameters.get(self.weight_name)
        return None if parameter is None else tuple(parameter.shape)

    def identity(self) -> int:
        """The same for modules with one weight."""
        if isinstance(self.module, QuantizedModule):
            return id(self.module._int8.tie or self.module)
        return id(self.weight)


Plan = list[list[_Weight]]
"""What may be quantized; modules with one weight together."""


def planned(model: nn.Module, entries: dict[str, Any]) -> Plan:
    """Compare a model with a file's tensors; ValueError: it is for another model."""
    expected: dict[str, Any] = {
        key: tuple(value.shape) if isinstance(value, Tensor) else None
        for key, value in model.state_dict().items()
    }
    groups: dict[int, list[_Weight]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        weight = _Weight(name, module)
        shape = weight.shape() if weight.kind in CLASSES else None
        if shape is None:
            continue
        for key in weight.look_into(entries):
            expected.pop(key, None)
        groups.setdefault(weight.identity(), []).append(weight)
        shapes = shape, shape[:1], None
        expected.update(zip(weight.file_keys(), shapes, strict=False))
    _check_keys(expected, entries)
    plan = list(groups.values())
    _check_modules(model, plan)
    return plan


def _check_keys(expected: dict[str, Any], entries: dict[str, Any]) -> None:
    for what, some in (
        ("lacks", expected.keys() - entries.keys()),
        ("has in addition", entries.keys() - expected.keys()),
    ):
        if some:
            names = ", ".join(sorted(some)[:3])
            raise ValueError(f"the file is for another model: it {what} {names}")
    for key, entry in entries.items():
        shape, right = tuple(entry["shape"]), expected[key]
        is_record = right is None and len(shape) == 1 and shape[0] <= MOST_BYTES
        if shape != right and not is_record:
            raise ValueError(
                f"size mismatch for {key}: {shape} in the file, "
                f"{right or 'a record of a few bytes'} in the model"
            )


def _check_modules(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError where a module cannot be what it is in the file."""
    held = selection.holders(model)
    quantized = {id(w.module) for group in plan for w in group if w.is_quantized}
    for group in plan:
        for weight in group:
            if not weight.is_quantized:
                continue
            if reason := _trouble(weight, held, quantized):
                raise ValueError(
                    f"{weight.name} cannot be {weight.format.name} as in the file: "
                    f"{reason}"
                )
        if len({(weight.is_quantized, weight.format) for weight in group}) > 1:
            names = ", ".join(weight.name for weight in group)
            raise ValueError(f"{names} share a weight: all are quantized, or none")


def _trouble(weight: _Weight, held: Any, quantized: set[int]) -> str | None:
    """Why it cannot be what it is in the file, where it is quantized."""
    if isinstance(weight.module, QuantizedModule):
        own = weight.module.format
        is_same = own == weight.format
        return None if is_same else f"it is {own.name}; dequantize_model() comes first"
    if reason := selection.trouble(weight.module, weight.format):
        return reason
    others = [h for h in held[weight.identity()] if id(h[2]) not in quantized]
    return f"shared with {others[0][0] or 'the model'}" if others else None


def restore(
    model: nn.Module, plan: Plan, tensors: dict[str, Tensor], metadata: Any
) -> nn.Module:
    """Change the layers and load the tensors, or leave all as it was: ValueError."""
    changed: list[_Weight] = []
    made_float: list[tuple[list[QuantizedModule], Tensor]] = []
    for group in plan:
        _check_alike(group, tensors)
        distinct = list({id(weight.module): weight for weight in group}.values())
        if not group[0].is_quantized:
            modules = [w.module for w in distinct]
            if were := [m for m in modules if isinstance(m, QuantizedModule)]:
                made_float.append((were, tensors[group[0].key]))
            continue
        for weight in group:
            plain, scale, record = (tensors[key] for key in weight.keys)
            check(weight.key, plain, scale, weight.shape(), weight.format)
            weight.record = from_tensor(record, weight.format)
        if not isinstance(group[0].module, QuantizedModule):
            _copy(distinct, tensors)
            changed += distinct
    state = OrderedDict(tensors)
    state._metadata = metadata  # type: ignore[attr-defined]
    swap = conversion.Swap(model)
    try:
        swap.do(changed)
        for modules, plain in made_float:
            device = modules[0]._scale().device
            parameter = modules[0]._int8.parameter(plain.to(device, copy=True))
            for module in modules:
                storage.restore(module, type(module), parameter)
        model.load_state_dict(state, strict=True)
        swap.finish(keep_master=False)
    except BaseException:
        swap.back(swap.layers)
        raise
    conversion.settle(model)
    conversion.notes.pop(model, None)
    return model


def _check_alike(group: list[_Weight], tensors: dict[str, Tensor]) -> None:
    """Raise ValueError where what is one weight in the model is not in the file."""
    first, *others = ([tensors[k] for k in w.file_keys()[:2]] for w in group)
    for i, other in enumerate(others, 1):
        pairs = zip(first, other, strict=True)
        if not all(a is b or torch.equal(a, b) for a, b in pairs):
            raise ValueError(
                f"{group[0].name} and {group[i].name} share a weight in the model, "
                "but not in the file"
            )


def _copy(group: list[_Weight], tensors: dict[str, Tensor]) -> None:
    for weight in group:
        weight.tied = [other for other in group if other is not weight]
    device = group[0].weight.device
    plain, scale = (tensors[key].to(device, copy=True) for key in group[0].keys[:2])
    quantized = quantizer.Quantized(plain, scale, 0.0, 0.0)
    tie = Tie() if len(group) > 1 else None
    for weight in group:
        conversion.copy_of(weight, quantized, weight.record, tie)
