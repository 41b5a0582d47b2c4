"""A model made int8 in place, and float again.

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
    optimizers,
    quantizer,
    samples,
    selection,
    storage,
    timing,
)
from pai_torchacc.quantization.attention import Int8MultiheadAttention
from pai_torchacc.quantization.layers import Int8Embedding
from pai_torchacc.quantization.record import METHODS, Record, State, Tie
from pai_torchacc.quantization.selection import CLASSES, Layer
from pai_torchacc.quantization.storage import Int8Module


@dataclass
class Options:
    """What :func:`quantize` was asked for."""

    method: str = "auto"
    include: Any = None
    exclude: Any = ()
    guard: float = 0.01
    keep_master: bool = False
    measure: bool = False

    def checked(self) -> Options:
        """Raise ValueError or TypeError where they are wrong."""
        if self.method not in METHODS:
            raise ValueError(f"method={self.method!r}; there are: {', '.join(METHODS)}")
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
        return self


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
    if list(selection.int8_modules(model)):
        _say_done(model, options)
        return model
    calls = None if sample is None else samples.calls_of(sample)
    # Where times are to decide, the table does not.
    method = "int8" if options.measure else options.method
    found = selection.layers(model, method, options.include, options.exclude)
    _check_any(found)
    copies = _copies(found, options)
    memo = Notes(options)
    swap = Swap(model)
    try:
        if calls is None:
            if options.measure:
                timing.measure(copies, {}, options.method)
            swap.do(
                [(layer, copied) for layer, copied in copies if layer.reason is None]
            )
        else:
            samples.Undisturbed(model).run(
                lambda: _guarded(model, calls, copies, options, memo, swap)
            )
        swap.finish(options.keep_master)
    except BaseException:
        swap.undo()
        raise
    memo.reasons = {layer.name: layer.reason for layer in found if layer.reason}
    notes[model] = memo
    if all(layer.reason for layer in found):
        _say_nothing_done(found)
    return model


def _say_nothing_done(found: list[Layer]) -> None:
    counts = Counter(layer.reason for layer in found).most_common(2)
    why = "; ".join(f"{n} of {len(found)} layers: {reason}" for reason, n in counts)
    warnings.warn(
        f"no layer has become int8 ({why}); "
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


def _check_any(found: list[Layer]) -> None:
    """Raise ValueError where nothing in the model can be int8 at all."""
    if [layer for layer in found if not layer.is_fault]:
        return
    known = [layer for layer in found if layer.kind in CLASSES] or found
    why = [f"{layer.name or 'the model'}: {layer.reason}" for layer in known[:3]]
    raise ValueError(
        "the model has no layer that can be int8 (Linear, Conv2d, Embedding, "
        f"MultiheadAttention in float32 on the CPU){': ' if why else ''}"
        + "; ".join(why)
    )


Pair = tuple[Layer, Int8Module]


def _copies(found: list[Layer], options: Options) -> list[Pair]:
    """Quantized copies of the layers that can be int8; others get their reason."""
    pairs: list[Pair] = []
    made: dict[int, tuple[quantizer.Quantized, Tie | None]] = {}
    for layer in found:
        if layer.reason is not None:
            continue
        key = id(layer.weight)
        if key not in made:
            quantized = quantizer.quantize(layer.weight)
            made[key] = quantized, Tie() if layer.tied else None
        quantized, tie = made[key]
        if not quantizer.is_sound(quantized):
            layer.refuse("NaN or Inf in its weight", is_fault=True)
            continue
        record = Record(options.method, layer.buckets)
        pairs.append((layer, copy_of(layer, quantized, record, tie)))
    selection.follow(found)
    pairs = [pair for pair in pairs if pair[0].reason is None]
    _check_any(found)
    copies = {layer.module: copied for layer, copied in pairs}
    for layer, copied in pairs:
        if isinstance(copied, Int8MultiheadAttention):
            out = copies.get(layer.module.out_proj)
            if out is not None:
                copied.__dict__["_modules"] = {"out_proj": out}
    return pairs


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
) -> Int8Module:
    """A quantized module beside a float one, with the same bias."""
    state = State(record, tuple(layer.weight.shape), layer.groups, tie=tie)
    state.signal, state.noise = quantized.signal, quantized.noise
    state.keeps_plain = any(
        CLASSES[type(other.module)] is Int8Embedding for other in layer.tied
    )
    copied: Any = shell(layer.module)
    storage.swap(copied, layer.cls, state)
    with quantizer.ordinary():
        copied._put(copied._laid_out(quantized.int8, quantized.scale))
    return copied


def _guarded(
    model: nn.Module,
    calls: list[samples.Call],
    copies: list[Pair],
    options: Options,
    memo: Notes,
    swap: Swap,
) -> None:
    """Swap, compare with float, and return the worst layers to float until it holds."""
    watch = samples.Watch({layer.module: copied for layer, copied in copies})
    try:
        watch.open()
        stock = samples.outputs(model, calls)
    finally:
        try:
            watch.close()
        except BaseException:  # an interrupt
            watch.close()
            raise
    for layer, copied in copies:
        copied._int8.output_sqnr = watch.sqnr(layer.module)
    if options.measure:
        timing.measure(copies, watch.shapes, options.method)
    swap.do([pair for pair in copies if pair[0].reason is None])
    while True:
        result = samples.compared(stock, samples.outputs(model, calls))
        memo.comparison = asdict(result)
        if result.badness() <= options.guard or not swap.pairs:
            return
        _give_up(swap)


def _give_up(swap: Swap) -> None:
    """Return the worst eighth of the layers to float."""
    pairs = sorted(swap.pairs, key=_quality)
    for layer, copied in pairs[: max(1, len(pairs) // 8)]:
        sqnr = copied._int8.output_sqnr
        said = "unknown" if sqnr is None else f"{sqnr:.1f} dB"
        layer.refuse(f"the guard: output SQNR {said}")
    selection.follow([layer for layer, _ in swap.pairs])
    swap.back([pair for pair in swap.pairs if pair[0].reason])


def _quality(pair: Pair) -> float:
    state = pair[1]._int8
    return state.weight_sqnr() if state.output_sqnr is None else state.output_sqnr


class Swap:
    """Layers of a model turned int8, and the way back."""

    def __init__(self, model: nn.Module):
        self._model = model
        self.pairs: list[Pair] = []
        self._parameters: dict[int, Any] = {}

    def do(self, pairs: list[Pair]) -> None:
        """Turn these layers into what their copies are."""
        for layer, copied in pairs:
            module: Any = layer.module
            self._parameters[id(layer)] = layer.weight
            self.pairs.append((layer, copied))
            storage.swap(module, layer.cls, copied._int8)
            module._put(copied._own())
            if copied._int8.tie is not None:
                copied._int8.tie.add(module)
        settle(self._model)

    def back(self, pairs: list[Pair]) -> None:
        """Turn these layers back, with the parameters that they had."""
        for layer, _ in pairs:
            parameter = self._parameters[id(layer)]
            storage.restore(layer.module, layer.cls, parameter)
            optimizers.note_restored(parameter)
        self.pairs = [pair for pair in self.pairs if pair not in pairs]
        settle(self._model)

    def undo(self) -> None:
        """Turn all of them back."""
        self.back(self.pairs)

    def finish(self, keep_master: bool) -> None:
        """Let go of the parameters, but for masters."""
        for layer, _ in self.pairs:
            module: Any = layer.module
            parameter = self._parameters[id(layer)]
            if keep_master:
                module._int8.master = parameter
            optimizers.note_removed(parameter)


_FAST = {
    nn.TransformerEncoderLayer: ("activation_relu_or_gelu", 0),
    nn.TransformerEncoder: ("use_nested_tensor", False),
}
"""What tells torch's transformers not to read weights directly."""


def settle(model: nn.Module) -> None:
    """Have the float modules around int8 ones work with them, and others as ever."""
    _close_fast_paths(model)
    fused_modules.settle(model)


def _close_fast_paths(model: nn.Module) -> None:
    """Have transformers with int8 layers call these, and others as ever.

    ``_before_int8`` of a transformer has what the setting was.
    """
    for module in model.modules():
        for kind, (name, closed) in _FAST.items():
            if not isinstance(module, kind) or name not in module.__dict__:
                continue
            is_quantized = any(isinstance(m, Int8Module) for m in module.modules())
            own = module.__dict__
            if is_quantized and "_before_int8" not in own:
                own["_before_int8"], own[name] = own[name], closed
            elif not is_quantized and "_before_int8" in own:
                own[name] = own.pop("_before_int8")


def dequantize(model: nn.Module) -> nn.Module:
    """See :func:`pai_torchacc.dequantize_model`."""
    modules = list(selection.int8_modules(model))
    parameters: dict[int, nn.Parameter] = {}
    made: list[tuple[Int8Module, nn.Parameter]] = []
    with quantizer.ordinary():
        for _, module in modules:
            state = module._int8
            key = id(state.tie) if state.tie is not None else id(module)
            if key not in parameters:
                held = state.master
                parameters[key] = _float_parameter(module) if held is None else held
            made.append((module, parameters[key]))
    for module, parameter in made:  # all of them: what is tied stays so
        module._int8.master = parameter
    for module, parameter in made:
        storage.restore(module, type(module), parameter)
        optimizers.note_restored(parameter)
    for part in model.modules():
        storage.clean(part)
    settle(model)
    for part in model.modules():
        notes.pop(part, None)
    return model


def _float_parameter(module: Int8Module) -> nn.Parameter:
    state = module._int8
    weight = module._fresh_weight().to(state.dtype)
    return nn.Parameter(weight, requires_grad=state.requires_grad)
