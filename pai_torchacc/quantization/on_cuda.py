"""Quantized linear layers on NVIDIA GPUs: which gain, and why none would.

Nothing has been measured on a GPU. What gains is told by a model: the bytes that a call
moves, its multiply-adds and its launches, at the rates of a large GPU.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from pai_torchacc.fusion import cuda
from pai_torchacc.fusion.linear import on_cuda as linear_on_cuda
from pai_torchacc.quantization import quantizer
from pai_torchacc.quantization.quantizer import FP8, INT8, PAD, Format
from pai_torchacc.quantization.record import ROWS

_UNIT = "quantized_linear"

_BYTES_S = 3e12
_LAUNCH_S = 2e-6
_BYTE_S = 1.2e15
_FLOPS_S = {16: 6e14, "tf32": 3e14, 32: 6e13}
"""Operations a second of products, of int8 and fp8 too; a multiply-add is two."""
_GAIN = 1.05
_MANY = 1 << 16
"""Rows that stand for any number of them."""
_FP8_CAPABILITY = (9, 0)
_FP8_VERSION = 120900
"""Of cuBLASLt. Scales by row work nowhere else."""


def reason(of: Format = INT8, device: torch.device | None = None) -> str | None:
    """Why layers on CUDA would run dequantized, as far as that is known."""
    c = quantizer.extension()
    if c is None:
        return "the extension does not work here"
    if why := c.cuda_reason() or c.cublaslt_trouble():
        return str(why)
    if of == FP8 and (why := _fp8_reason(c, device)):
        return why
    state = c.cuda_units()[_UNIT]
    if state == "ready":
        return None
    if state == "broken":
        return "their kernels do not compile or load"
    provider = cuda.kernels()
    if provider is None:
        return "nobody provides their kernels"
    found = provider.reason(sys.modules["torch"])
    return None if found is None else str(found)


def _fp8_reason(c: Any, device: torch.device | None) -> str | None:
    """What e4m3 numbers with a scale by row lack here."""
    capability = torch.cuda.get_device_capability(device)
    if capability != _FP8_CAPABILITY:
        said = ".".join(map(str, capability))
        return f"fp8 needs compute capability 9.0, and the device has {said}"
    version = c.cublaslt_version()
    if isinstance(version, str):
        return version
    if version < _FP8_VERSION:
        major, minor = version // 10000, version // 100 % 100
        return f"fp8 needs cuBLASLt 12.9, and this is {major}.{minor}"
    return None


def is_faster(kind: str, n: int, k: int, dtype: torch.dtype, of: Format = INT8) -> bool:
    """Whether the format should be faster at each number of rows of this kind."""
    by = _fp8_s if of == FP8 else _int8_s
    rows = ROWS[kind]
    least, most = max(rows.least, 1), min(rows.most, _MANY)
    rate = _float_rate(dtype)
    return all(
        _float_s(int(m), n, k, *rate) >= _GAIN * by(int(m), n, k, rate[0])
        for m in (least, most)
    )


def _float_rate(dtype: torch.dtype) -> tuple[int, float]:
    """Bytes of an element, operations a second. As stock would compute now."""
    if torch.is_autocast_enabled("cuda") or dtype != torch.float32:
        return 2, _FLOPS_S[16]
    allows_tf32 = linear_on_cuda.products()() & linear_on_cuda.ALLOWS_TF32
    return 4, _FLOPS_S["tf32" if allows_tf32 else 32]


def _float_s(m: int, n: int, k: int, size: int, rate: float) -> float:
    moved = size * (n * k + m * k + m * n)
    return _LAUNCH_S + max(2 * m * n * k / rate, moved / _BYTES_S)


def _int8_s(m: int, n: int, k: int, size: int) -> float:
    """Rows quantized, multiplied, and made floats again: three launches."""
    n, k = -(-n // PAD) * PAD, -(-k // PAD) * PAD
    product = max(2 * m * n * k / _BYTE_S, (n * k + m * k + 4 * m * n) / _BYTES_S)
    around = (size + 1) * m * k + (size + 4) * m * n
    return 3 * _LAUNCH_S + product + around / _BYTES_S


def _fp8_s(m: int, n: int, k: int, size: int) -> float:
    """Rows quantized, and multiplied; the bias of float32 has a launch of its own."""
    product = max(2 * m * n * k / _BYTE_S, (n * k + m * k + size * m * n) / _BYTES_S)
    around = (size + 1) * m * k
    has_kernel = size == torch.float32.itemsize
    if has_kernel:
        around += 2 * size * m * n
    return (2 + has_kernel) * _LAUNCH_S + product + around / _BYTES_S
