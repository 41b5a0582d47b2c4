"""A model brought to what a file says: the same layers int8, the same numbers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc.quantization import conversion, quantizer, selection, storage
from pai_torchacc.quantization.record import Record, Tie, from_tensor
from pai_torchacc.quantization.selection import CLASSES, FLOAT_CLASSES, Layer
from pai_torchacc.quantization.storage import Int8Module, check_int8

_MOST_RECORD_BYTES = 1 << 16


@dataclass
class _Weight:
    """A module that may be int8, in the model and in the file."""

    name: str
    prefix: str
    module: nn.Module
    kind: type
    shape: tuple[int, ...]
    is_int8: bool
    """In the file."""

    @property
    def key(self) -> str:
        """The name of its float weight."""
        return f"{self.prefix}{CLASSES[self.kind].weight_name}"

    @property
    def keys(self) -> tuple[str, str, str]:
        """Names in the state dict when it is int8."""
        return f"{self.key}_int8", f"{self.key}_scale", f"{self.prefix}quantization"

    def identity(self) -> int:
        """The same for modules with one weight."""
        if isinstance(self.module, Int8Module):
            tie = self.module._int8.tie
            return id(self.module if tie is None else tie)
        return id(self.module._parameters[CLASSES[self.kind].weight_name])


@dataclass
class Plan:
    """What the file says of each module that may be int8."""

    weights: list[_Weight] = field(default_factory=list)

    def together(self) -> list[list[_Weight]]:
        """Give modules with one weight together."""
        groups: dict[int, list[_Weight]] = {}
        for weight in self.weights:
            groups.setdefault(weight.identity(), []).append(weight)
        return list(groups.values())


def planned(model: nn.Module, entries: dict[str, Any]) -> Plan:
    """Compare a model with a file's list of tensors.

    Raises
    ------
    ValueError
        The file is for another model.
    """
    plan, expected = Plan(), _expected(model)
    for name, module in _named(model):
        kind = FLOAT_CLASSES.get(type(module), type(module))
        if kind not in CLASSES:
            continue
        prefix = f"{name}." if name else ""
        key = f"{prefix}{CLASSES[kind].weight_name}"
        if expected.get(key) is None:
            continue
        is_int8 = f"{key}_int8" in entries
        weight = _Weight(name, prefix, module, kind, expected[key], is_int8)
        plan.weights.append(weight)
        if is_int8:
            del expected[key]
            shapes = weight.shape, weight.shape[:1], None
            expected.update(zip(weight.keys, shapes, strict=True))
    _check_keys(expected, entries)
    _check_modules(model, plan)
    return plan


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules under all their names, as a state dict has them."""
    return model.named_modules(remove_duplicate=False)


def _distinct(group: list[_Weight]) -> list[_Weight]:
    """One weight for each module, under its first name."""
    first = {id(weight.module): weight for weight in reversed(group)}
    return list(reversed(first.values()))


def _expected(model: nn.Module) -> dict[str, Any]:
    """Shapes of the float model's state dict; None for what may have any."""
    found: dict[str, Any] = {}
    for key, value in model.state_dict().items():
        found[key] = tuple(value.shape) if isinstance(value, Tensor) else None
    for name, module in _named(model):
        if not isinstance(module, Int8Module):
            continue
        prefix = f"{name}." if name else ""
        key = f"{prefix}{module.weight_name}"
        for gone in (f"{key}_int8", f"{key}_scale", f"{prefix}quantization"):
            found.pop(gone, None)
        found[key] = module._int8.shape
    return found


def _check_keys(expected: dict[str, Any], entries: dict[str, Any]) -> None:
    for what, some in (
        ("lacks", expected.keys() - entries.keys()),
        ("has in addition", entries.keys() - expected.keys()),
    ):
        if some:
            names = ", ".join(sorted(some)[:3])
            raise ValueError(f"the file is for another model: it {what} {names}")
    for key, entry in entries.items():
        shape = tuple(entry["shape"])
        if expected[key] is None:
            if len(shape) != 1 or shape[0] > _MOST_RECORD_BYTES:
                raise ValueError(f"{key} has a wrong size")
        elif shape != expected[key]:
            raise ValueError(
                f"size mismatch for {key}: {shape} in the file, {expected[key]} in "
                "the model"
            )


def _check_modules(model: nn.Module, plan: Plan) -> None:
    """Raise ValueError where a module cannot be what it is in the file."""
    held = selection.holders(model)
    int8 = {id(w.module) for w in plan.weights if w.is_int8}
    for weight in plan.weights:
        if isinstance(weight.module, Int8Module) or not weight.is_int8:
            continue
        reason = selection.trouble(weight.module)
        others = [h for h in held.get(weight.identity(), ()) if id(h[2]) not in int8]
        if others and not reason:
            reason = f"shared with {others[0][0] or 'the model'}"
        if reason:
            raise ValueError(f"{weight.name} cannot be int8 as in the file: {reason}")
    for group in plan.together():
        if len({weight.is_int8 for weight in group}) > 1:
            names = ", ".join(weight.name for weight in group)
            raise ValueError(f"{names} share a weight: all are int8, or none")


def restore(
    model: nn.Module, plan: Plan, tensors: dict[str, Tensor], metadata: Any
) -> nn.Module:
    """Change the layers and load the tensors.

    Raises
    ------
    ValueError
        The tensors are no int8 weights; the model is as it was.
    """
    records = _checked(plan, tensors)
    pairs: list[conversion.Pair] = []
    for group in plan.together():
        if group[0].is_int8 and not isinstance(group[0].module, Int8Module):
            pairs += _copies(group, tensors, records)
    state = OrderedDict(tensors)
    state._metadata = metadata  # type: ignore[attr-defined]
    swap = conversion.Swap(model)
    try:
        swap.do(pairs)
        _make_float(plan, tensors)
        model.load_state_dict(state, strict=True)
        swap.finish(keep_master=False)
    except BaseException:
        swap.undo()
        raise
    conversion.settle(model)
    conversion.notes.pop(model, None)
    return model


def _checked(plan: Plan, tensors: dict[str, Tensor]) -> dict[str, Record]:
    records: dict[str, Record] = {}
    for weight in plan.weights:
        if weight.is_int8:
            int8, scale = (tensors[key] for key in weight.keys[:2])
            check_int8(weight.keys[0], int8, weight.keys[1], scale, weight.shape)
            records[weight.prefix] = from_tensor(tensors[weight.keys[2]])
    for group in plan.together():
        first = group[0]
        keys = first.keys[:2] if first.is_int8 else (first.key,)
        for other in group[1:]:
            own = other.keys[:2] if other.is_int8 else (other.key,)
            for a, b in zip(keys, own, strict=True):
                is_same = tensors[a] is tensors[b]
                if not is_same and not torch.equal(tensors[a], tensors[b]):
                    raise ValueError(
                        f"{first.name} and {other.name} share a weight in the model, "
                        "but not in the file"
                    )
    return records


def _copies(
    group: list[_Weight], tensors: dict[str, Tensor], records: dict[str, Record]
) -> list[conversion.Pair]:
    group = _distinct(group)
    layers = [Layer(weight.name, weight.module) for weight in group]
    for layer in layers:
        layer.tied = [other for other in layers if other is not layer]
    int8, scale = (tensors[key].clone() for key in group[0].keys[:2])
    quantized = quantizer.Quantized(int8, scale, 0.0, 0.0)
    tie = Tie() if len(group) > 1 else None
    return [
        (layer, conversion.copy_of(layer, quantized, records[weight.prefix], tie))
        for layer, weight in zip(layers, group, strict=True)
    ]


def _make_float(plan: Plan, tensors: dict[str, Tensor]) -> None:
    """Give modules that are int8 and are float in the file their parameters."""
    for group in plan.together():
        if group[0].is_int8:
            continue
        modules = [
            weight.module
            for weight in _distinct(group)
            if isinstance(weight.module, Int8Module)
        ]
        if modules:
            state = modules[0]._int8
            parameter = nn.Parameter(
                tensors[group[0].key].to(state.dtype).clone(),
                requires_grad=state.requires_grad,
            )
            for module in modules:
                storage.restore(module, FLOAT_CLASSES[type(module)], parameter)
