"""A model quantized in place, and float again.

Everything that can fail is done on copies of the layers before the first layer of the
model is touched; what fails later, as the guard may, is taken back.
"""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from pai_torchacc.quantization import (
    fused_modules,
    operators,  # noqa: F401 which defines torch.ops.pai_torchacc.int8_*
    quantizer,
    samples,
    selection,
    storage,
    timing,
    training,
)
from pai_torchacc.quantization.layers import Int8Embedding
from pai_torchacc.quantization.quantizer import FORMATS, FP8, INT8, Format
from pai_torchacc.quantization.record import METHODS, Record, State, Tie
from pai_torchacc.quantization.selection import CLASSES, Layer
from pai_torchacc.quantization.storage import QuantizedModule
from pai_torchacc.quantization.transformer import encoder


@dataclass
class Options:
    """What :func:`quantize` was asked for."""

    method: str = "auto"
    dtype: str = "int8"
    include: Any = None
    exclude: Any = ()
    guard: float = 0.01
    keep_master: bool = False
    measure: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError or TypeError where they are wrong."""
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}; there are: {', '.join(METHODS)}")
        if self.dtype not in FORMATS:
            raise ValueError(f"dtype={self.dtype!r}; there are: {', '.join(FORMATS)}")
        if self.method == "int8" and self.dtype != "int8":
            raise ValueError(f"method='int8' is not of dtype={self.dtype!r}")
        if isinstance(self.guard, bool) or not isinstance(self.guard, (int, float)):
            raise TypeError(f"guard is a number, not {type(self.guard).__name__}")
        if not 0 <= self.guard <= 1:
            raise ValueError(f"guard={self.guard}; it is from 0 to 1")
        for name in ("keep_master", "measure"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} is True or False")
        for name in ("include", "exclude"):
            value = getattr(self, name)
            if isinstance(value, Iterable) and not isinstance(value, (str, type)):
                setattr(self, name, tuple(value))

    @property
    def format(self) -> Format:
        """What weights are rounded to: methods with the name of one mean it."""
        return FORMATS.get(self.method) or FORMATS[self.dtype]


@dataclass
class Notes:
    """What is remembered of a model, for its report."""

    options: Options
    reasons: dict[str, str] = field(default_factory=dict)
    comparison: dict[str, float | None] | None = None


notes: weakref.WeakKeyDictionary[nn.Module, Notes] = weakref.WeakKeyDictionary()


def checked_model(model: Any) -> nn.Module:
    """Raise TypeError where this is no module."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a torch.nn.Module, not {type(model).__name__}")
    return model


def quantize(model: nn.Module, sample: Any, options: Options) -> nn.Module:
    """See :func:`pai_torchacc.quantize_model`."""
    if selection.quantized_modules(model):
        _say_done(model, options)
        return model
    calls = None if sample is None else samples.calls_of(sample)
    # Where times are to decide, the table does not.
    to = options.format
    method = to.name if options.measure else options.method
    found = selection.layers(model, method, to, options.include, options.exclude)
    _check_any(found, to)
    _copy(found, options)
    memo, swap = Notes(options), Swap(model)
    try:
        if calls is None:
            if options.measure:
                timing.measure(_able(found), {}, options.method)
            swap.do(_able(found))
        else:
            samples.undisturbed(
                model, lambda: _guarded(model, calls, found, memo, swap)
            )
        swap.finish(options.keep_master)
    except BaseException:
        swap.back(swap.layers)
        raise
    memo.reasons = {layer.name: layer.reason for layer in found if layer.reason}
    notes[model] = memo
    if not _able(found):
        _say_nothing_done(found)
    return model


def _able(found: list[Layer]) -> list[Layer]:
    return [layer for layer in found if layer.reason is None]


def _say_nothing_done(found: list[Layer]) -> None:
    counts = Counter(layer.reason for layer in found).most_common(2)
    why = "; ".join(f"{n} of {len(found)} layers: {reason}" for reason, n in counts)
    warnings.warn(
        f"no layer has become {found[0].format.name} ({why}); "
        "pai_torchacc.quantization_report(model) tells of each",
        stacklevel=4,
    )


def _say_done(model: nn.Module, options: Options) -> None:
    held = notes.get(model)
    if held is None or held.options != options:
        warnings.warn(
            "the model is quantized already; nothing is changed. For other options "
            "call pai_torchacc.dequantize_model(model) first",
            stacklevel=4,
        )


_ABLE = {INT8: "Linear, Conv2d, Embedding, MultiheadAttention", FP8: "Linear"}


def _check_any(found: list[Layer], to: Format) -> None:
    """Raise ValueError where nothing in the model can be quantized at all."""
    if [layer for layer in found if not layer.is_fault]:
        return
    known = [layer for layer in found if layer.kind in CLASSES] or found
    why = [f"{layer.name or 'the model'}: {layer.reason}" for layer in known[:3]]
    raise ValueError(
        f"the model has no layer that can be {to.name} ({_ABLE[to]}, "
        f"in float32 on the CPU or on CUDA){': ' if why else ''}" + "; ".join(why)
    )


def _copy(found: list[Layer], options: Options) -> None:
    """Quantized copies of the layers that can be int8; others get their reason."""
    made: dict[int, tuple[quantizer.Quantized | None, Tie | None]] = {}
    for layer in _able(found):
        key = id(layer.weight)
        if key not in made:
            quantized = quantizer.quantize(layer.weight, layer.format)
            made[key] = quantized, Tie() if layer.tied else None
        quantized, tie = made[key]
        if quantized is None:
            layer.refuse("NaN or Inf in its weight", is_fault=True)
        else:
            record = Record(options.method, layer.buckets, layer.format)
            copy_of(layer, quantized, record, tie)
    selection.follow(found)
    _check_any(found, options.format)
    copies = {layer.module: layer.copied for layer in _able(found)}
    for module, copied in copies.items():
        if isinstance(module, nn.MultiheadAttention) and module.out_proj in copies:
            copied.__dict__["_modules"] = {"out_proj": copies[module.out_proj]}


def shell(module: nn.Module) -> nn.Module:
    """Another module with the same tensors and settings, and no hooks."""
    copied = module.__class__.__new__(module.__class__)
    copied.__dict__.update(module.__dict__)
    for key in ("_parameters", "_buffers", "_modules"):
        copied.__dict__[key] = dict(module.__dict__[key])
    copied.__dict__["_non_persistent_buffers_set"] = set()
    for key, value in module.__dict__.items():
        if key.endswith("_hooks") and isinstance(value, dict):
            copied.__dict__[key] = type(value)()
    copied.__dict__["training"] = False
    return copied


def copy_of(
    layer: Layer, quantized: quantizer.Quantized, record: Record, tie: Tie | None
) -> None:
    """Make a quantized module beside a float one, with the same bias."""
    state = State(record, tuple(layer.weight.shape), layer.groups, tie=tie)
    state.dtype = layer.weight.dtype
    state.signal, state.noise = quantized.signal, quantized.noise
    state.keeps_plain = any(other.cls is Int8Embedding for other in layer.tied)
    layer.copied = shell(layer.module)
    storage.swap(layer.copied, layer.cls, state)
    with quantizer.ordinary():
        layer.copied._put(layer.copied._laid_out(quantized.plain, quantized.scale))


def _guarded(
    model: nn.Module,
    calls: list[samples.Call],
    found: list[Layer],
    memo: Notes,
    swap: Swap,
) -> None:
    """Swap, compare with float, and return the worst layers to float until it holds."""
    options, able = memo.options, _able(found)
    watch = samples.Watch({layer.module: layer.copied for layer in able})
    try:
        watch.open()
        stock = samples.outputs(model, calls)
    finally:
        try:
            watch.close()
        finally:  # also where an interrupt came while the first went on
            watch.close()
    for layer in able:
        layer.copied._int8.output_sqnr = watch.sqnr(layer.module)
    if options.measure:
        timing.measure(able, watch.shapes, options.method)
    swap.do(_able(able))
    while True:
        result = samples.compared(stock, samples.outputs(model, calls))
        memo.comparison = asdict(result)
        if result.badness() <= options.guard or not swap.layers:
            return
        _give_up(swap)


def _give_up(swap: Swap) -> None:
    """Return the worst eighth of the layers to float."""
    worst = sorted(swap.layers, key=_quality)[: max(1, len(swap.layers) // 8)]
    for layer in worst:
        sqnr = layer.copied._int8.output_sqnr
        said = "unknown" if sqnr is None else f"{sqnr:.1f} dB"
        layer.refuse(f"the guard: output SQNR {said}")
    selection.follow(swap.layers)
    swap.back([layer for layer in swap.layers if layer.reason])


def _quality(layer: Layer) -> float:
    state = layer.copied._int8
    return state.weight_sqnr() if state.output_sqnr is None else state.output_sqnr


class Swap:
    """Layers of a model quantized, and the way back."""

    def __init__(self, model: nn.Module):
        self._model = model
        self.layers: list[Layer] = []

    def do(self, layers: list[Layer]) -> None:
        """Turn these layers into what their copies are."""
        for layer in layers:
            module, state = layer.module, layer.copied._int8
            self.layers.append(layer)
            storage.swap(module, layer.cls, state)
            module._put(layer.copied._own())
            if state.tie is not None:
                state.tie.members.add(module)
        settle(self._model)

    def back(self, layers: list[Layer]) -> None:
        """Turn these layers back, with the parameters that they had."""
        for layer in layers:
            storage.restore(layer.module, layer.cls, layer.weight)
            training.note_restored(layer.weight)
        self.layers = [layer for layer in self.layers if layer not in layers]
        settle(self._model)

    def finish(self, keep_master: bool) -> None:
        """Let go of the parameters, but for masters."""
        for layer in self.layers:
            if keep_master:
                layer.module._int8.master = layer.weight
            training.note_removed(layer.weight)


_FAST = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
"""What tells torch's transformers not to read weights directly."""


def settle(model: nn.Module) -> None:
    """Have the float modules around int8 ones work with them, and others as ever.

    ``_before_int8`` of a transformer has what its setting was.
    """
    for module in model.modules():
        for kind, (name, closed) in _FAST.items():
            if not isinstance(module, kind) or name not in module.__dict__:
                continue
            is_quantized = any(isinstance(m, QuantizedModule) for m in module.modules())
            own = module.__dict__
            if is_quantized and "_before_int8" not in own:
                own["_before_int8"], own[name] = own[name], closed
            elif not is_quantized and "_before_int8" in own:
                own[name] = own.pop("_before_int8")
    fused_modules.settle(model)
    encoder.settle(model)


def dequantize(model: nn.Module) -> nn.Module:
    """See :func:`pai_torchacc.dequantize_model`."""
    parameters: dict[Any, nn.Parameter] = {}
    made: list[tuple[QuantizedModule, nn.Parameter]] = []
    with quantizer.ordinary():
        for _, module in selection.quantized_modules(model):
            state = module._int8
            key = state.tie or module
            if key not in parameters and state.master is None:
                parameters[key] = state.parameter(module._fresh_weight())
            made.append((module, parameters.setdefault(key, state.master)))
    for module, parameter in made:  # all of them: what is tied stays so
        module._int8.master = parameter
    for module, parameter in made:
        storage.restore(module, type(module), parameter)
        training.note_restored(parameter)
    for part in model.modules():
        storage.clean(part)
    settle(model)
    for part in model.modules():
        notes.pop(part, None)
    return model
