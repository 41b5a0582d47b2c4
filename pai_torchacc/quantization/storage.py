"""What quantized modules have in common: where the weight is, and who sees it.

A quantized module is the same object as before, of a subclass of its class. In place of
the parameter ``weight`` it has buffers: ``weight_scale`` and, where there are kernels
of int8, ``weight_packed``, which is laid out for them; ``weight_int8`` elsewhere and
where plain rows are wanted, and ``weight_fp8`` in that format. Buffers move and count
like others. Checkpoints and pickles have ``weight_int8`` or ``weight_fp8``,
``weight_scale`` and ``quantization``, the record, but no packed layout.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc.quantization import quantizer, states, training
from pai_torchacc.quantization.quantizer import FORMATS, INT8, Format
from pai_torchacc.quantization.record import State, from_tensor

PARTS = ("packed", "packed_1", "packed_2", *FORMATS, "scale", "float")
"""Ends of the names of a quantized module's buffers; the packed pieces come first."""
_MOST_PIECES = 3

MOST_KEPT = 1 << 16
"""Elements of a weight of which a float copy is kept for calls that want one. On CUDA
there is no such limit: what was decided there is to be as fast as float."""


class QuantizedModule(nn.Module):
    """A module whose weight is quantized.

    ``weight`` and ``weight_int8``, or what the format's is called, are fresh copies at
    each access.
    """

    weight_name = "weight"
    format: Format = INT8
    packed_on: tuple[str, ...] = ("cpu",)
    """Devices with kernels for which weights are packed."""
    has_cuda_kernels = False

    float_class: type[nn.Module]
    """What it is a quantized form of."""

    _names: tuple[str, ...]
    """Of the buffers that hold the weight."""

    _int8: State

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        name, plain = cls.weight_name, QuantizedModule._plain
        cls.float_class = cls.__bases__[-1]
        cls._names = tuple(f"{name}_{part}" for part in PARTS)
        setattr(cls, name, property(QuantizedModule._fresh_weight))
        own = f"{name}_{cls.format.name}"
        setattr(cls, own, property(lambda self: plain(self).clone()))

    def extra_repr(self) -> str:
        """Say the format."""
        return ", ".join(filter(None, (super().extra_repr(), self.format.name)))

    def _own(self) -> dict[str, Tensor]:
        """Those that there are."""
        return {k: self._buffers[k] for k in self._names if k in self._buffers}

    def _others(self) -> dict[str, Any]:
        """Buffers that are not of the weight."""
        return {k: v for k, v in self._buffers.items() if k not in self._names}

    def _packed(self) -> list[Tensor]:
        """The packed pieces, if there are any."""
        names = self._names[:_MOST_PIECES]
        return [self._buffers[n] for n in names if n in self._buffers]

    def _scale(self) -> Tensor:
        return self._buffers[f"{self.weight_name}_scale"]

    def _plain_name(self) -> str:
        return f"{self.weight_name}_{self.format.name}"

    def _plain(self) -> Tensor:
        """The quantized weight in its own shape."""
        held = self._buffers.get(self._plain_name())
        if held is not None:
            return held
        pieces = self._packed()
        if quantizer.is_in_graph():
            return self._unpacked(pieces)
        return self._once("plain", pieces[0], lambda _: self._unpacked(pieces))

    def _rows(self, n_pieces: int) -> tuple[int, ...]:
        """Output channels of each packed piece."""
        return self._int8.shape[:1]

    def _unpacked(self, pieces: list[Tensor]) -> Tensor:
        state = self._int8
        is_in_graph = quantizer.is_in_graph()
        unpack = torch.ops.pai_torchacc.int8_unpack if is_in_graph else quantizer.unpack
        plain = [
            unpack(piece, (rows, *state.shape[1:]), state.groups)
            for piece, rows in zip(pieces, self._rows(len(pieces)), strict=True)
        ]
        return plain[0] if len(plain) == 1 else torch.cat(plain)

    def _float_weight(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The dequantized weight, to compute with inputs of this dtype."""
        own = self._int8.dtype
        if torch.float64 in (dtype, own) or not dtype.is_floating_point:
            dtype = own  # so that torch refuses what it refuses of float modules
        held = self._buffers.get(f"{self.weight_name}_float")
        if held is not None:
            return held.to(dtype)
        return quantizer.dequantize(self._plain(), self._scale(), dtype)

    def _fresh_weight(self) -> Tensor:
        return quantizer.dequantize(self._plain(), self._scale(), self._int8.dtype)

    def _laid_out(self, plain: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """What the buffers are to be for this weight."""
        name, state = self.weight_name, self._int8
        found = {f"{name}_scale": scale}
        device = plain.device.type
        is_packed = device in self.packed_on
        if is_packed:
            found |= self._pieces_of(plain)
        if not is_packed or (state.tie is not None and state.keeps_plain):
            found[self._plain_name()] = plain
        is_wanted = state.is_float_on(device) and state.record.method != "weight_only"
        is_kept = plain.numel() <= MOST_KEPT or (
            device == "cuda" and self.has_cuda_kernels
        )
        if is_wanted and is_kept and not plain.is_meta:
            dtype = state.dtype if device == "cuda" else torch.float32
            with quantizer.ordinary():
                found[f"{name}_float"] = quantizer.dequantize(plain, scale, dtype)
        return found

    def _pieces_of(self, plain: Tensor) -> dict[str, Tensor]:
        groups = self._int8.groups
        packed = self._once("packed", plain, lambda w: quantizer.pack(w, groups))
        return {f"{self.weight_name}_packed": packed}

    def _put(self, buffers: dict[str, Tensor], is_in_place: bool = False) -> None:
        """Hold these tensors, in place of any others or written over them."""
        if is_in_place:
            buffers = {k: _written(self._buffers.get(k), v) for k, v in buffers.items()}
        self._non_persistent_buffers_set.update(self._names)
        # At once, for other threads.
        self.__dict__["_buffers"] = self._others() | buffers

    def _once(
        self,
        what: str,
        source: Tensor,
        make: Callable[[Tensor], Tensor],
        by: Any = None,
    ) -> Tensor:
        tie = self._int8.tie
        if tie is None:
            return make(source)
        return tie.once(what, source, lambda: make(source), by)

    # Moving and copying.

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        own, dtype = self._own(), self._int8.dtype
        try:
            for key in own:
                del self._buffers[key]
            super()._apply(fn, recurse)
            moved = self._moved(dict(own), fn)
        except BaseException:
            self._buffers.update(own)
            self._int8.dtype = dtype
            raise
        self._put(moved)
        return self

    def _moved(self, own: dict[str, Tensor], fn: Any) -> dict[str, Tensor]:
        name = self.weight_name

        def apply(key: str, tensor: Tensor) -> Tensor:
            return self._once(key, tensor, lambda t: _same_dtype(fn, t), fn)

        key = f"{name}_scale"
        before = self._int8.dtype
        self._int8.dtype = fn(torch.zeros(1, device=own[key].device).to(before)).dtype
        scale = apply(key, own.pop(key))
        packed = [own[k] for k in own if k.startswith(f"{name}_packed")]
        has_copy = f"{name}_float" in own and scale.is_cuda
        is_copy_old = has_copy and self._int8.dtype != before
        stays = packed and packed[0].device.type == scale.device.type
        if stays and not is_copy_old:
            return {key: scale} | {k: apply(k, t) for k, t in own.items()}
        plain = own.get(self._plain_name())
        if plain is None:
            plain = self._unpacked(packed)
        return self._laid_out(apply(self._plain_name(), plain), scale)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        name, plain = self.weight_name, self._plain()
        if plain.dtype.is_floating_point:  # as bytes: torch cannot unpickle e4m3's
            plain = plain.view(torch.uint8)
        ours = {self._plain_name(): plain, f"{name}_scale": self._scale()}
        state["_buffers"] = self._others() | ours
        process = get_spawning_popen()
        if process is not None:
            # Its memory is passed to the child, which starts when pickling is over.
            process.__dict__.setdefault("_int8_tensors", []).append(plain)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self._int8.tie is not None:
            self._int8.tie.members.add(self)
        plain = self._buffers[self._plain_name()]
        if plain.dtype != self.format.dtype:
            plain = plain.view(self.format.dtype)
        self._put(self._laid_out(plain, self._scale()))

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        new = memo[id(self)] = type(self).__new__(type(self))
        new.__dict__.update(copy.deepcopy(self.__dict__, memo))
        if new._int8.tie is not None:
            new._int8.tie.members.add(new)
        return new

    def __copy__(self) -> Any:
        new = type(self).__new__(type(self))
        new.__dict__.update(self.__dict__)
        return new

    # Checkpoints.

    def _saved_keys(self, prefix: str) -> tuple[str, str, str]:
        return states.saved_keys(prefix, self.weight_name, self.format)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        plain, scale, record = self._saved_keys(prefix)
        destination[plain], destination[scale] = self._plain(), self._scale()
        if self._buffers.get(self._plain_name()) is None:
            # Rows are a copy of what is packed: the module's scales may change.
            destination[scale] = destination[scale].clone()
        destination[record] = self._int8.record.as_tensor()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *rest: Any
    ) -> None:
        local_metadata, strict, missing_keys, _, error_msgs = rest
        hooks = self._load_state_dict_pre_hooks
        for hook in hooks.values():
            hook(state_dict, prefix, *rest)
        assign = local_metadata.get("assign_to_params_buffers", False)
        try:
            absent = self._load_weight(state_dict, prefix, assign)
        except ValueError as error:
            error_msgs.append(str(error))
            absent = []
        if strict:
            missing_keys += absent
        self.__dict__["_load_state_dict_pre_hooks"] = OrderedDict()  # have been called
        try:
            super()._load_from_state_dict(state_dict, prefix, *rest)
        finally:
            self.__dict__["_load_state_dict_pre_hooks"] = hooks

    def _load_weight(
        self, state_dict: dict[str, Any], prefix: str, assign: bool
    ) -> list[str]:
        """Take the weight out of a checkpoint; names that should be there and are not.

        ValueError, and nothing changed, where it cannot be loaded.
        """
        name = prefix + self.weight_name
        own = self._saved_keys(prefix)
        found = {key: state_dict.pop(key) for key in own if key in state_dict}
        if name in state_dict and not found:
            self._load_float(name, state_dict.pop(name), assign)
            return []
        absent = [key for key in own if key not in found]
        if any(key in absent for key in own[:2]):
            return absent
        plain, scale, record = (found.get(key) for key in own)
        states.check(name, plain, scale, self._int8.shape, self.format)
        if plain.is_meta or scale.is_meta:
            raise ValueError(f"{own[0]} has no data: it is on the meta device")
        if record is not None:
            self._int8.take(from_tensor(record, self.format))
        self._int8.master = None
        self._replace(plain, scale, assign)
        return absent

    def _load_float(self, key: str, weight: Any, assign: bool) -> None:
        states.check_shape(key, weight, self._int8.shape)
        if not weight.is_floating_point() or weight.is_meta:
            raise ValueError(f"{key} is no float tensor with data")
        weight_on_cpu = weight.detach().to("cpu", torch.float32)
        quantized = quantizer.quantize(weight_on_cpu, self.format)
        if quantized is None:
            raise ValueError(f"{key} has NaN or Inf and cannot be {self.format.name}")
        state = self._int8
        state.signal, state.noise = quantized.signal, quantized.noise
        if state.master is not None:
            with torch.no_grad():
                state.master.copy_(weight)
        self._replace(quantized.plain, quantized.scale, assign)

    def _replace(self, plain: Tensor, scale: Tensor, assign: bool) -> None:
        """Take new numbers, in place where tensors may be others' as well."""
        held = self._scale()
        if held.is_meta and not assign:
            return  # as stock, which warns for the parameters
        device = scale.device if held.is_meta else held.device
        with quantizer.ordinary():
            plain = plain.detach().to(device, self.format.dtype).contiguous()
            scale = scale.detach().to(device, torch.float32).contiguous()
            if not assign and self._buffers.get(self._plain_name()) is None:
                scale = scale.clone()
            elif not assign:
                plain, scale = plain.clone(), scale.clone()
            tie = self._int8.tie
            for module in list(tie.members) if tie is not None else [self]:
                module._put(module._laid_out(plain, scale), not assign)

    # Refusals that say what to do.

    def __setattr__(self, name: str, value: Any) -> None:
        if name in (self.weight_name, self._plain_name()):
            raise AttributeError(
                f"{name} is quantized and cannot be assigned: "
                "pai_torchacc.dequantize_model() makes the module float again"
            )
        super().__setattr__(name, value)

    def reset_parameters(self) -> None:
        """Refuse: quantized weights are not initialised."""
        raise RuntimeError(
            "a quantized weight cannot be initialised anew: "
            "pai_torchacc.dequantize_model() makes the module float again"
        )

    def train(self, mode: bool = True) -> Any:
        """Set the mode as ever, and warn once for the model: it does not train."""
        if mode:
            training.warn(self)
        return super().train(mode)


def _same_dtype(fn: Any, tensor: Tensor) -> Tensor:
    moved = fn(tensor)
    return moved if moved.dtype == tensor.dtype else tensor.to(moved.device)


def _written(held: Tensor | None, new: Tensor) -> Tensor:
    """``held`` with the numbers of ``new`` where that can be, else ``new``."""
    if held is None or held is new or held.is_inference() or held.is_meta:
        return new
    if (held.shape, held.dtype, held.device) != (new.shape, new.dtype, new.device):
        return new
    return held.copy_(new)


def swap(module: nn.Module, cls: type[QuantizedModule], state: State) -> None:
    """Turn a float module into ``cls``, still without its tensors."""
    parameter = module._parameters[cls.weight_name]
    assert parameter is not None
    state.order = tuple(module._parameters)
    state.requires_grad = parameter.requires_grad
    state.take(state.record)
    module.__dict__["_int8"] = state
    del module._parameters[cls.weight_name]
    module.__class__ = cls


def restore(module: Any, cls: type[QuantizedModule], parameter: nn.Parameter) -> None:
    """Turn what is ``cls``, or was about to be, into a float module with this weight.

    Interrupted it is one or the other; :func:`clean` does the rest.
    """
    parameters = {**module._parameters, cls.weight_name: parameter}
    order = module._int8.order if is_left(module) else ()
    names = dict.fromkeys((*order, *parameters))
    module.__dict__["_parameters"] = {
        n: parameters[n] for n in names if n in parameters
    }
    module.__class__ = cls.float_class
    clean(module)


def clean(module: nn.Module) -> None:
    """Take what is left of ours out of a float module; the user's own stays."""
    if not is_left(module):
        return
    for name in quantizer.WEIGHTS:
        for key in (f"{name}_{part}" for part in PARTS):
            module._buffers.pop(key, None)
            module._non_persistent_buffers_set.discard(key)
    module.__dict__.pop("_int8", None)


def is_left(module: nn.Module) -> bool:
    """Whether ``_int8`` is ours; users may have an attribute of that name."""
    return isinstance(module.__dict__.get("_int8"), State)
