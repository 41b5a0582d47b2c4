"""Which layers can be quantized, which should be, and why the others stay float."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from pai_torchacc import _switch
from pai_torchacc.fusion.foreign import is_torchs_own
from pai_torchacc.quantization import on_cuda, quantizer
from pai_torchacc.quantization.attention import Int8MultiheadAttention
from pai_torchacc.quantization.layers import (
    Fp8Linear,
    Int8Conv2d,
    Int8Embedding,
    Int8Linear,
    Int8OutProjection,
    geometry,
)
from pai_torchacc.quantization.quantizer import FP8, INT8, PAD, Format
from pai_torchacc.quantization.record import ROWS, kinds_on
from pai_torchacc.quantization.storage import MOST_KEPT, QuantizedModule, is_left

CLASSES: dict[type, type[QuantizedModule]] = {
    cls.float_class: cls
    for cls in (
        *(Int8Linear, Int8OutProjection, Int8Conv2d, Int8Embedding),
        Int8MultiheadAttention,
    )
}
"""By exact class: what it becomes."""

_CLASSES_OF = {INT8: CLASSES, FP8: {nn.Linear: Fp8Linear}}

_LONGEST_SUM = 1 << 16
_LEAST_CHANNELS = 16
_ON_CUDA = (torch.float16, torch.bfloat16)
"""Dtypes of weights beside float32, whose rows are of these dtypes as well."""

Name = str | type[nn.Module]


@dataclass(eq=False)
class Layer:
    """A module that has a weight, and what is to become of it."""

    name: str
    module: Any
    format: Format = INT8
    reason: str | None = None
    """Why it stays float."""
    is_fault: bool = False
    """Whether the reason lies in the model, not in a table or an option."""
    buckets: tuple[tuple[str, str], ...] = ()
    tied: list[Layer] = field(default_factory=list)
    """Other layers with the same weight."""
    copied: Any = None
    """What it would become, beside it."""

    @property
    def kind(self) -> type:
        """Its class as long as it is float."""
        kind = type(self.module)
        return getattr(kind, "float_class", kind)

    @property
    def cls(self) -> type[QuantizedModule]:
        """What it would become."""
        return _CLASSES_OF[self.format][self.kind]

    @property
    def weight_name(self) -> str:
        """Of its parameter, in any format."""
        return CLASSES[self.kind].weight_name

    @cached_property
    def weight(self) -> nn.Parameter:
        """Its parameter, also when it has become quantized."""
        parameter = self.module._parameters[self.weight_name]
        assert parameter is not None
        return parameter

    @property
    def groups(self) -> int:
        """Groups of a convolution; 1 for others."""
        return self.module.groups if isinstance(self.module, nn.Conv2d) else 1

    def refuse(self, reason: str, is_fault: bool = False) -> None:
        """Have it stay float; the first reason counts."""
        if self.reason is None:
            self.reason, self.is_fault = reason, is_fault


def layers(
    model: nn.Module, method: str, to: Format, include: Any, exclude: Any
) -> list[Layer]:
    """All layers of a model, with those reasons that need no sample."""
    modules = dict(model.named_modules())
    wanted = None if include is None else matching(modules, include, "include")
    unwanted = matching(modules, exclude, "exclude")
    found = [Layer(n, m, to) for n, m in modules.items() if has_weight(m)]
    for layer in found:
        if reason := trouble(layer.module, to):
            layer.refuse(reason, is_fault=True)
        if layer.name in unwanted:
            layer.refuse("excluded")
        if wanted is not None and layer.name not in wanted:
            layer.refuse("not included")
        if layer.reason is None:
            if reason := _none_there(layer, method):
                layer.refuse(reason)
                continue
            layer.buckets = chosen(layer, method)
            decide(layer, method)
    _tie(model, found)
    follow(found)
    return found


def follow(found: list[Layer]) -> None:
    """Have layers stay float whose attention does, or with which they are tied."""
    _follow_attention(found)
    for layer in found:
        for other in layer.tied:
            if other.reason:
                layer.refuse(
                    f"shared with {other.name}, which stays float ({other.reason})",
                    other.is_fault,
                )


def matching(modules: dict[str, nn.Module], asked: Any, option: str) -> set[str]:
    """Names of the modules that these names, prefixes, patterns and classes mean.

    TypeError for anything else, ValueError where one means no module.
    """
    if isinstance(asked, (str, type)) or not isinstance(asked, Iterable):
        raise TypeError(
            f"{option} is a collection of module names or classes, not {asked!r}"
        )
    found: set[str] = set()
    for item in asked:
        if isinstance(item, type) and issubclass(item, nn.Module):
            found |= {n for n, m in modules.items() if isinstance(m, item)}
        elif isinstance(item, str):
            inside, match = f"{item}.", partial(fnmatch.fnmatchcase, pat=item)
            names = {n for n in modules if f"{n}.".startswith(inside) or match(n)}
            if not names or not item:
                raise ValueError(f"{option}: the model has no module {item!r}")
            found |= names
        else:
            raise TypeError(f"{option}: a module name or class, not {item!r}")
    return found


def has_weight(module: nn.Module) -> bool:
    """Whether it owns a matrix, or would if it were float."""
    if isinstance(module, tuple(CLASSES)):
        return True
    if isinstance(module, torch.nn.utils.parametrize.ParametrizationList):
        return False  # what it parametrizes is listed
    return any(
        p is not None and (is_lazy(p) or p.dim() > 1)
        for p in module._parameters.values()
    )


def trouble(module: nn.Module, to: Format = INT8) -> str | None:
    """Why this module cannot be quantized so; None where it can."""
    kind = type(module)
    if kind not in CLASSES:
        return _no_class(module)
    if kind not in _CLASSES_OF[to]:
        return f"{kind.__name__} is not supported in {to.name}"
    if "forward" in module.__dict__ or not is_torchs_own(kind, "forward"):
        return "its forward was replaced by others"
    if "_int8" in module.__dict__ and not is_left(module):
        return "it has an attribute _int8 of its own"
    if why := _settings_trouble(module):
        return why
    name = CLASSES[kind].weight_name
    weight = module._parameters.get(name)
    own = {k for k, p in module._parameters.items() if p is not None}
    own -= {name, "bias", "in_proj_bias"}
    if weight is None or own or module._buffers:
        return "its weight is computed from other tensors"
    return _weight_trouble(weight) or (_fp8_trouble(weight) if to == FP8 else None)


def _fp8_trouble(weight: Tensor) -> str | None:
    """As torch._scaled_mm would refuse it."""
    if weight.shape[0] % PAD or weight.shape[1] % PAD:
        n, k = weight.shape
        return f"fp8 has inputs and outputs in multiples of {PAD}, not {k} and {n}"
    return None


def _no_class(module: nn.Module) -> str:
    for base in type(module).__mro__:
        if base in CLASSES:
            if torch.nn.utils.parametrize.is_parametrized(module):
                return "parametrized"
            return f"{type(module).__name__} is a subclass of {base.__name__}"
    if isinstance(module, nn.RNNBase):
        return "recurrent layers are not supported"
    return f"{type(module).__name__} is not supported"


def _weight_trouble(weight: Tensor) -> str | None:
    if is_lazy(weight):
        return "not initialised yet"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}"
    if weight.is_meta:
        return "has no data: it is on the meta device"
    if weight.device.type not in ("cpu", "cuda"):
        return f"on {weight.device}"
    if weight.dtype not in (torch.float32, *(_ON_CUDA if weight.is_cuda else ())):
        return f"dtype {str(weight.dtype).removeprefix('torch.')}"
    if weight.layout != torch.strided:
        return f"layout {weight.layout}"
    if weight.numel() == 0:
        return "empty"
    if weight[0].numel() > _LONGEST_SUM:
        return f"sums of more than {_LONGEST_SUM} products"
    return None


def _settings_trouble(module: nn.Module) -> str | None:
    if isinstance(module, nn.MultiheadAttention):
        if not module._qkv_same_embed_dim:
            return "keys or values have sizes of their own"
        if module.bias_k is not None or module.add_zero_attn:
            return "bias_kv and zero attention are not supported"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm changes the weight"
    if isinstance(module, nn.Conv2d) and geometry(module) is None:
        return f"padding {module.padding}, {module.padding_mode}"
    return None


def chosen(layer: Layer, method: str) -> tuple[tuple[str, str], ...]:
    """Per kind of call: quantized or float, by the method and the calibration table."""
    module, weight, to = layer.module, layer.weight, layer.format
    kinds: tuple[str, ...]
    if isinstance(module, nn.Embedding):
        op, kinds, work = "int8_embedding", ("rows",), weight.shape[1]
    elif isinstance(module, nn.Conv2d):
        kinds, work = (_conv_kind(module),), weight.numel() // module.groups
        op = "int8_conv2d"
    else:
        kinds = kinds_on("cuda" if to == FP8 else weight.device.type)
        op, work = "int8_linear", weight.numel()

    def is_quantized(kind: str) -> bool:
        if method == "auto" and weight.is_cuda:
            return kind != kinds[0] and on_cuda.is_faster(
                kind, *weight.shape, weight.dtype, to
            )
        if method == "auto":
            return is_faster(op, kind, work)
        return method == to.name or op == "int8_embedding"

    return tuple((kind, to.name if is_quantized(kind) else "float") for kind in kinds)


def _none_there(layer: Layer, method: str) -> str | None:
    """Why a layer stays float, whatever its size, on the device that it is on."""
    if not layer.weight.is_cuda:
        is_slow = method == "auto" and layer.format == FP8
        return "fp8 is faster on CUDA only" if is_slow else None
    if isinstance(layer.module, nn.Conv2d) and method != "weight_only":
        return "no int8 convolution on CUDA"
    if method != "auto":
        return None
    if not isinstance(layer.module, nn.Linear):
        return f"{layer.kind.__name__} on CUDA is not faster in int8"
    return on_cuda.reason(layer.format, layer.weight.device)


def _conv_kind(conv: nn.Conv2d) -> str:
    """The kind of call that the calibration table knows it by."""
    if conv.groups > 1:
        return "grouped"
    if conv.in_channels < _LEAST_CHANNELS:
        return "few"
    return {(1, 1): "1x1", (3, 3): "3x3"}.get(tuple(conv.kernel_size), "other")


def is_faster(op: str, kind: str, work: int) -> bool:
    """Whether int8 was measured faster than float on this kind of CPU."""
    if _switch.reason("model_quantization"):
        return False
    n_threads = torch.get_num_threads()
    return quantizer.extension().int8_faster(op, kind, work, n_threads) is True


def decide(layer: Layer, method: str) -> None:
    """Refuse a layer that would not be faster, with the method "auto"."""
    floats = [kind for kind, how in layer.buckets if how == "float"]
    if method != "auto" or not floats:
        is_thin = layer.groups > 1 and layer.weight.shape[1] < _LEAST_CHANNELS
        if method == "auto" and is_thin:
            layer.refuse(f"fewer than {_LEAST_CHANNELS} channels in a group")
    elif len(floats) == len(layer.buckets) and layer.weight.is_cuda:
        layer.refuse("too small to be faster on CUDA")
    elif len(floats) == len(layer.buckets):
        why = _switch.reason("model_quantization")
        inactive = f"int8 kernels are not active: {why}"
        layer.refuse(inactive if why else "not measured faster")
    elif layer.weight.numel() > MOST_KEPT and not layer.weight.is_cuda:
        layer.refuse(f"not measured faster at {ROWS[floats[0]].said}")


def holders(model: nn.Module) -> dict[int, list[tuple[str, str, nn.Module]]]:
    """By parameter's id: the modules that hold it, and under which name."""
    found: dict[int, list[tuple[str, str, nn.Module]]] = {}
    for name, module in model.named_modules():
        for key, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), []).append((name, key, module))
    return found


def _tie(model: nn.Module, found: list[Layer]) -> None:
    """Layers with one weight: all quantized, or all float."""
    by_module = {id(layer.module): layer for layer in found}
    held = holders(model)
    for layer in found:
        if layer.kind not in CLASSES:
            continue
        weight = layer.module._parameters.get(layer.weight_name)
        for name, key, module in held.get(id(weight), ()):
            other = by_module.get(id(module))
            if other is layer:
                continue
            if other is not None and key == "weight" and _may_share(layer, other):
                layer.tied.append(other)
            else:
                layer.refuse(f"shared with {name or 'the model'}", is_fault=True)


def _may_share(layer: Layer, other: Layer) -> bool:
    """Whether both can have one quantized weight; attention has one of its own."""
    return layer.groups == other.groups and all(
        one.kind in CLASSES
        and one.weight_name == "weight"
        and one.kind is not NonDynamicallyQuantizableLinear
        for one in (layer, other)
    )


def _follow_attention(found: list[Layer]) -> None:
    """An output projection belongs to its attention, whose forward uses it."""
    attentions = {
        id(layer.module.out_proj): layer
        for layer in found
        if layer.kind is nn.MultiheadAttention
    }
    for layer in found:
        if layer.kind is NonDynamicallyQuantizableLinear:
            owner = attentions.get(id(layer.module))
            if owner is None:
                layer.refuse("belongs to no MultiheadAttention", is_fault=True)
            elif owner.reason:
                layer.refuse("its attention stays float", owner.is_fault)


def quantized_modules(model: nn.Module) -> list[tuple[str, QuantizedModule]]:
    """The quantized modules of a model."""
    return [(n, m) for n, m in model.named_modules() if isinstance(m, QuantizedModule)]
