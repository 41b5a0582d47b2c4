"""Modules around int8 layers.

In ``nn.Sequential`` an int8 layer computes what follows it, see
:mod:`pai_torchacc.fusion.sequential`. A ``nn.MaxPool2d`` of a model with int8
convolutions gets a class of its own, as these do, and loses it with them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc import _switch
from pai_torchacc.fusion import sequential
from pai_torchacc.fusion.foreign import chains, is_torchs_own
from pai_torchacc.quantization import dispatch, operators
from pai_torchacc.quantization.layers import Fp8Linear, Int8Conv2d, Int8Linear
from pai_torchacc.quantization.quantizer import is_compiling

_IMAGES = 4

_SWITCH = "model_quantization"
_TENSORS = ("bias", "weight_scale")
_KNOWN = (
    *(
        sequential.Known(kind, tensors=(*_TENSORS, "weight_packed"))
        for kind in (Int8Linear, Int8Conv2d)
    ),
    # weight_fp8 is a property of ours, which copies the buffer of that name.
    sequential.Known(Fp8Linear, tensors=_TENSORS),
)


def install(c: Any) -> None:
    """Have ``nn.Sequential`` run quantized layers together with what follows them."""
    sequential.install(c, _SWITCH, _KNOWN)


def remove() -> None:
    """Have each module called."""
    chains.release(_SWITCH)


_WORTH_IT = 1 << 16
_MANY_CHANNELS = 16


class ChannelsLastMaxPool2d(nn.MaxPool2d):
    """``nn.MaxPool2d`` by way of channels last, where torch's kernel has vectors.

    The same bits in the same order of memory. It is stock's with gradients, for small
    images, where somebody has patched stock's, and while ``operator_fusion`` is on,
    whose kernel needs no detour.
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
            and bool(operators.kernels)
            and not _switch.is_active("operator_fusion")
            and is_torchs_own(nn.MaxPool2d, "forward")
        )


def settle(model: nn.Module) -> None:
    """Swap the classes of pools in models with int8 convolutions, and only of these."""
    has_images = any(isinstance(m, Int8Conv2d) for m in model.modules())
    before, after = nn.MaxPool2d, ChannelsLastMaxPool2d
    if not has_images:
        before, after = after, before
    for module in model.modules():
        if type(module) is before:
            module.__class__ = after
