"""Float modules around int8 layers that know more of these than stock's.

They are torch's own modules whose class is swapped, as that of the layers is, and
swapped back with them. Nothing is assumed of a model beyond what such a module does
itself: in ``nn.Sequential`` what follows a layer is the next module, and nobody sees
what lies between.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc.quantization import dispatch
from pai_torchacc.quantization.layers import Int8Conv2d, Int8Linear

_IMAGES = 4
_RELU = 1

is_compiling = torch.compiler.is_compiling


class Int8Sequential(nn.Sequential):
    """``nn.Sequential`` whose int8 layers compute what follows them.

    A batch normalization in eval mode and a ReLU behind a convolution, a ReLU behind a
    linear layer. Hooks, a forward of its own or another class on any of them, training
    and gradients have every module called for itself.
    """

    def forward(self, input: Any) -> Any:
        """Call the modules in turn."""
        modules = list(self._modules.values())
        if is_compiling() or not _are_calls_plain():
            for module in modules:
                input = module(input)
            return input
        i = 0
        while i < len(modules):
            module, following = modules[i], modules[i + 1 : i + 3]
            n, result = 0, None
            if following and type(input) is Tensor:
                if type(module) is Int8Conv2d:
                    n, result = _convolved(module, following, input)
                elif type(module) is Int8Linear:
                    n, result = _multiplied(module, following, input)
            input = module(input) if result is None else result
            i += 1 if result is None else 1 + n
        return input


def has_work(module: nn.Sequential) -> bool:
    """Whether an :class:`Int8Sequential` would do anything else than stock's."""
    parts = list(module._modules.values())
    return any(
        (isinstance(a, Int8Conv2d) and type(b) in (nn.BatchNorm2d, nn.ReLU))
        or (isinstance(a, Int8Linear) and type(b) is nn.ReLU)
        for a, b in pairwise(parts)
    )


def _are_calls_plain() -> bool:
    """Whether nobody watches the calls of all modules."""
    shared = nn.modules.module
    return not (shared._global_forward_hooks or shared._global_forward_pre_hooks)


def _is_ordinary(module: nn.Module) -> bool:
    """Whether calling this module is no more than its class's forward."""
    own = module.__dict__
    return not (
        own["_forward_hooks"]
        or own["_forward_pre_hooks"]
        or own["_backward_hooks"]
        or own["_backward_pre_hooks"]
        or "forward" in own
        or own.get("_compiled_call_impl") is not None
    )


def _is_relu(module: nn.Module) -> bool:
    return type(module) is nn.ReLU and _is_ordinary(module)


def _multiplied(
    layer: Int8Linear, following: list[nn.Module], x: Tensor
) -> tuple[int, Tensor | None]:
    """How many of the following modules are in the result."""
    state = layer._int8
    kernel = dispatch.kernel_of("int8_linear")
    if kernel is None or state.floats or not _is_relu(following[0]):
        return 0, None
    packed = layer._buffers.get("weight_packed")
    if packed is None or not _is_ordinary(layer):
        return 0, None
    scale, bias = layer._buffers["weight_scale"], layer._parameters["bias"]
    return 1, kernel(x, packed, scale, bias, *state.shape, _RELU)


def _convolved(
    layer: Int8Conv2d, following: list[nn.Module], x: Tensor
) -> tuple[int, Tensor | None]:
    """The same for a convolution."""
    kernel = dispatch.kernel_of("int8_conv2d")
    packed, at = layer._buffers.get("weight_packed"), layer._geometry()
    is_fit = kernel is not None and packed is not None and at is not None
    if not is_fit or layer._int8.floats or x.dim() != _IMAGES:
        return 0, None
    if not _is_ordinary(layer):
        return 0, None
    norm = _values_of(following[0])
    relu = following[1:] if norm else following[:1]
    has_relu = bool(relu) and _is_relu(relu[0])
    n = (norm is not None) + has_relu
    if n == 0:
        return 0, None
    scale, bias = layer._buffers["weight_scale"], layer._parameters["bias"]
    activation = _RELU if has_relu else 0
    return n, kernel(x, packed, scale, bias, at, norm, activation, False)


def _values_of(norm: nn.Module) -> tuple[Any, ...] | None:
    """What a normalization computes with, if it can be computed along."""
    if type(norm) is not nn.BatchNorm2d or norm.training or not _is_ordinary(norm):
        return None
    weight, shift = norm._parameters["weight"], norm._parameters["bias"]
    mean, variance = norm._buffers["running_mean"], norm._buffers["running_var"]
    if mean is None or variance is None:
        return None
    if torch.is_grad_enabled() and any(
        p is not None and p.requires_grad for p in (weight, shift)
    ):
        return None
    return weight, shift, mean, variance, norm.eps


_WORTH_IT = 1 << 16
_MANY_CHANNELS = 16


class ChannelsLastMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` by way of channels last, where torch's kernel has vectors.

    The same bits in the same order of memory. With gradients, small images and while
    ``operator_fusion`` is on, whose kernel needs no detour, it is stock's.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Compute what ``nn.MaxPool2d`` does."""
        if is_compiling() or not self._takes(input):
            return super().forward(input)
        result = F.max_pool2d(
            input.contiguous(memory_format=torch.channels_last),
            self.kernel_size,
            self.stride,
            self.padding,
            self.dilation,
            ceil_mode=self.ceil_mode,
        )
        return result.contiguous()

    def _takes(self, x: Tensor) -> bool:
        return (
            type(x) is Tensor
            and x.dim() == _IMAGES
            and x.dtype == torch.float32
            and x.device.type == "cpu"
            and x.numel() >= _WORTH_IT
            and x.shape[1] >= _MANY_CHANNELS
            and not self.return_indices
            and not (torch.is_grad_enabled() and x.requires_grad)
            and not torch.jit.is_tracing()
            and not dispatch.is_transformed()
            and x.is_contiguous()
            and dispatch.is_detour_worth_it()
        )


SWAPPED = {nn.Sequential: Int8Sequential, nn.MaxPool2d: ChannelsLastMaxPool2d}


def settle(model: nn.Module) -> None:
    """Swap the classes of what surrounds int8 layers, and of what no more does."""
    has_images = any(isinstance(m, Int8Conv2d) for m in model.modules())
    for module in model.modules():
        kind: Any = type(module)
        if isinstance(module, nn.Sequential):
            is_wanted = has_work(module)
        elif isinstance(module, nn.MaxPool2d):
            is_wanted = has_images
        else:
            continue
        if kind in SWAPPED and is_wanted:
            module.__class__ = SWAPPED[kind]
        elif kind in SWAPPED.values() and not is_wanted:
            module.__class__ = kind.__mro__[1]
