"""Linear, Conv2d and Embedding with quantized weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from pai_torchacc.quantization import dispatch, operators
from pai_torchacc.quantization.quantizer import FP8, is_compiling, is_in_graph
from pai_torchacc.quantization.storage import QuantizedModule

_SPATIAL = 2


class QuantizedLinear(QuantizedModule):
    """What quantized forms of ``nn.Linear`` have in common."""

    has_cuda_kernels = True
    operator: str
    held_as: str
    """The buffer that the operator takes."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what ``nn.Linear`` does."""
        state, bias = self._int8, self._parameters["bias"]
        buffers = self._buffers
        n, k = state.shape
        if not state.floats or not state.is_float(input, k):
            op, scale = self.operator, buffers["weight_scale"]
            weight = buffers.get(self.held_as)
            kernel = operators.kernels.get(op)
            if kernel is not None and weight is not None and not is_compiling():
                result = kernel(input, weight, scale, bias, n, k)
                if result is not None:
                    return result
            result = dispatch.otherwise(op, input, weight, scale, bias, n, k)
            if result is not None:
                return result
        held = buffers.get("weight_float")
        if held is None or held.dtype != input.dtype:
            held = self._float_weight(input.dtype)
        return F.linear(input, held, bias)


class Int8Linear(QuantizedLinear, nn.Linear):
    """``nn.Linear`` with an int8 weight."""

    packed_on = ("cpu", "cuda")
    operator, held_as = "int8_linear", "weight_packed"


class Fp8Linear(QuantizedLinear, nn.Linear):
    """``nn.Linear`` with a weight of e4m3 numbers, which only CUDA multiplies."""

    format = FP8
    packed_on = ()
    operator, held_as = "fp8_linear", "weight_fp8"


class Int8OutProjection(Int8Linear, NonDynamicallyQuantizableLinear):
    """The last projection of a MultiheadAttention."""


class Int8Conv2d(QuantizedModule, nn.Conv2d):
    """``nn.Conv2d`` with an int8 weight."""

    def forward(self, input: Tensor) -> Tensor:
        """Compute what ``nn.Conv2d`` does."""
        state, bias = self._int8, self._parameters["bias"]
        at = self._geometry()
        if at is not None and not state.floats:
            buffers, result = self._buffers, None
            packed, scale = buffers.get("weight_packed"), buffers["weight_scale"]
            images = input.unsqueeze(0) if input.dim() == _SPATIAL + 1 else input
            kernel = operators.kernels.get("int8_conv2d")
            if kernel is not None and packed is not None and not is_compiling():
                result = kernel(images, packed, scale, bias, at)
            if result is None:
                result = dispatch.otherwise(
                    "int8_conv2d", images, packed, scale, bias, at
                )
            if result is not None:
                return result if images is input else result.squeeze(0)
        return self._conv_forward(input, self._float_weight(input.dtype), bias)

    def _geometry(self) -> tuple[int, ...] | None:
        """As :func:`geometry`, which is asked again when a setting has changed."""
        if is_compiling():
            return geometry(self)
        state = self._int8
        now = self.stride, self.padding, self.dilation, self.groups, self.padding_mode
        if state.geometry is None or state.geometry[0] != now:
            state.geometry = now, geometry(self)
        return state.geometry[1]


def geometry(conv: Any) -> tuple[int, ...] | None:
    """(n, c, kh, kw, strides, paddings, dilations, groups) of a Conv2d.

    None where it cannot be said so: padding that is not zeros, or not as wide on both
    sides.
    """
    if conv.padding_mode != "zeros":
        return None
    padding = conv.padding
    if padding == "valid":
        padding = (0,) * _SPATIAL
    elif padding == "same":
        sides = zip(conv.dilation, conv.kernel_size, strict=True)
        total = [d * (k - 1) for d, k in sides]
        if any(t % 2 for t in total):
            return None
        padding = tuple(t // 2 for t in total)
    channels = conv.in_channels // conv.groups
    sizes = (conv.out_channels, channels, *conv.kernel_size)
    return (*sizes, *conv.stride, *padding, *conv.dilation, conv.groups)


class Int8Embedding(QuantizedModule, nn.Embedding):
    """``nn.Embedding`` with int8 rows."""

    packed_on = ()

    def forward(self, input: Tensor) -> Tensor:
        """Look rows up."""
        buffers = self._buffers
        int8, scale = buffers["weight_int8"], buffers["weight_scale"]
        kernel, is_graph = operators.kernels.get("int8_embedding"), is_in_graph()
        result = None
        if kernel is not None and not is_graph:
            result = kernel(input, int8, scale)
        if result is None:
            is_ours = input.is_cpu and input.dtype in (torch.int64, torch.int32)
            is_on = is_ours and (kernel is not None or is_graph)
            by = torch.ops.pai_torchacc.int8_embedding if is_on else operators.embedding
            result = by(input, int8, scale)
        dtype = self._int8.dtype
        return result if dtype == torch.float32 else result.to(dtype)
