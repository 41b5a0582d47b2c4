"""fp8 layers, and what they compute by their definition."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import quantized_layers
import torch
from quantized_layers import mlp, quantized
from torch import Tensor, nn

from benchmarks.extension import function
from pai_torchacc.quantization import on_cuda, quantizer

switched_on_anywhere = quantized_layers.switched_on

FP8 = "fp8_linear"
X = torch.randn(20, 48)
LARGEST = 448


@pytest.fixture
def switched_on(switched_on_anywhere: Any) -> Any:
    """On a device that has fp8, as the emulation's have."""
    device = torch.device("cuda")
    if why := on_cuda._fp8_reason(quantizer.extension(), device):
        pytest.skip(f"fp8: {why}")
    return switched_on_anywhere


def layer_of(
    n: int = 32, k: int = 48, dtype: torch.dtype = torch.float32, bias: bool = True
) -> Any:
    """On the device."""
    layer = nn.Linear(k, n, bias=bias, dtype=dtype)
    return quantized(layer.cuda(), method="fp8")


def net_of(weights: torch.dtype = torch.float32, **options: Any) -> Any:
    """Two layers and ReLU, on the device; of the same numbers each time."""
    net = mlp(weights, (48, 64, 32)).cuda()
    return quantized(net, **({"method": "fp8"} | options))


def rows_of(x: Tensor) -> Tensor:
    """What is left of rows as e4m3 numbers with a scale each, in float64."""
    x = x.to(torch.float32)
    scale = x.abs().amax(-1, keepdim=True) / torch.tensor(float(LARGEST))
    inverse = torch.where(scale > 0, 1 / scale, 0)
    q = (x * inverse).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return q.double() * scale.double()


def exact(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """The layer's result in float64, and sums of magnitudes, on the CPU."""
    own = layer.state_dict()
    w = own["weight_fp8"].cpu().double() * own["weight_scale"].cpu().double()[:, None]
    rows = rows_of(x)
    y, size = rows @ w.t(), rows.abs() @ w.abs().t()
    if layer.bias is None:
        return y, size
    bias = layer.bias.detach().cpu().double()
    return y + bias, size + bias.abs()


def is_near(y: Tensor, layer: Any, x: Tensor) -> bool:
    """Within what sums, and one rounding to the result's dtype, may do.

    Tensor cores of 9.0 add up some products of fp8 with 14 bits (DeepSeek-V3's report,
    3.3.2). One number of 48 that is rounded to another neighbour is 2**-10 of a sum.
    """
    expected, size = exact(layer, x)
    sums = 2.0**-12 * size
    rounding = 2 * torch.finfo(y.dtype).eps * (expected.abs() + sums)
    return bool(((y.cpu().double() - expected).abs() <= sums + rounding + 1e-30).all())


class _Device(ctypes.Structure):
    """ptac_lt_device of csrc/device/cuda/cublaslt.h."""

    _fields_ = (("handle", ctypes.c_void_p), ("capability", ctypes.c_int))


@contextmanager
def capability(number: int) -> Iterator[None]:
    """The first device, whose handle has been made, as one of this capability."""
    on = function("ptac_lt_on", ctypes.POINTER(_Device), ctypes.c_int)(0)
    before, on.contents.capability = on.contents.capability, number
    try:
        yield
    finally:
        on.contents.capability = before
