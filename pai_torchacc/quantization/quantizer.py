"""Weights as numbers: quantized, measured, laid out for the kernels, and back.

One scale for each output channel, the first dimension: symmetric, round half to even.
A channel of zeros has the scale 0. The extension does it for int8 where it can; what
stands here gives the same int8 and scales by torch's own operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host

WEIGHTS = ("weight", "in_proj_weight")
"""Names of the parameters that are quantized."""

PAD = 16
"""Rows and columns of weights on CUDA are multiples of it, filled up with zeros."""
_AT_ONCE = 1 << 24
"""Elements of a weight that torch's operators quantize at a time."""
_LEAST_ABSMAX = 2.0**-113
"""Below it the inverse of a scale is infinite or nearly so."""

is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing


@dataclass(frozen=True)
class Format:
    """What a weight is rounded to."""

    name: str
    """As in names of buffers and keys: ``weight_<name>``."""
    dtype: torch.dtype
    largest: int

    def rounded(self, scaled: Tensor) -> Tensor:
        """Numbers within the largest ones, half to even."""
        if self.dtype.is_floating_point:
            # The inverse of a scale is rounded: a cast beyond the largest may be NaN.
            return scaled.clamp(-self.largest, self.largest).to(self.dtype)
        return torch.round(scaled).nan_to_num(0).to(self.dtype)

    def has_others(self, plain: Tensor) -> bool:
        """Whether there is a number that no weight is rounded to."""
        if self.dtype.is_floating_point:
            return bool(plain.to(torch.float32).isnan().any())
        return plain.numel() > 0 and int(plain.amin()) < -self.largest


INT8 = Format("int8", torch.int8, 127)
FP8 = Format("fp8", torch.float8_e4m3fn, 448)
"""e4m3: four bits of exponent, three of mantissa, no infinity."""

FORMATS = {one.name: one for one in (INT8, FP8)}


class Quantized(NamedTuple):
    """A quantized weight and what it lost."""

    plain: Tensor
    scale: Tensor
    signal: float
    noise: float


@functools.cache
def extension() -> Any:
    """The extension, which lays weights out in one way for the whole process."""
    try:
        return _host.learnt()
    except _host.Unavailable:
        return None


def is_in_graph() -> bool:
    """Whether a graph is being made of what is computed: compiled, exported, traced."""
    return is_compiling() or _is_tracing()


class ordinary:  # noqa: N801 as torch.no_grad
    """Without gradients, also for tensors that outlive ``inference_mode``.

    An interrupt on the way in leaves gradients as they were.
    """

    def __init__(self) -> None:
        self._had_gradients = torch.is_grad_enabled()
        self._inference: Any = None

    def __enter__(self) -> None:
        try:
            if torch.is_inference_mode_enabled():
                self._inference = torch.inference_mode(False)
                self._inference.__enter__()
            torch._C._set_grad_enabled(False)
        except BaseException:
            torch._C._set_grad_enabled(self._had_gradients)
            raise

    def __exit__(self, *error: Any) -> None:
        torch._C._set_grad_enabled(self._had_gradients)
        if self._inference is not None:
            self._inference.__exit__(*error)


def quantize(weight: Tensor, to: Format = INT8) -> Quantized | None:
    """Round a float32 weight [n, ...] on the CPU, or any on CUDA.

    None where it has NaN or Inf. ``signal`` and ``noise`` are sums of squares, of the
    weight and of what rounding changed.
    """
    with ordinary():
        weight = weight.detach().contiguous()
        c = None if weight.is_cuda or to != INT8 else extension()
        if c is None:
            return _quantize(weight, to)
        made = c.int8_quantize(weight)
        return None if made is None else Quantized(*made)


def _quantize(weight: Tensor, to: Format = INT8) -> Quantized | None:
    """Some rows at a time, for the sake of memory."""
    rows = weight.reshape(weight.shape[0], -1)
    parts = rows.split(max(1, _AT_ONCE // rows.shape[1]))
    made = [_quantized(part.to(torch.float32), to) for part in parts]
    plain, scale, powers = (torch.cat(of) for of in zip(*made, strict=True))
    if not bool(torch.isfinite(scale).all()):
        return None
    signal, noise = powers.sum(0).tolist()
    return Quantized(plain.reshape(weight.shape), scale, signal, noise)


def _quantized(rows: Tensor, to: Format) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in this format, their scales, and [[signal, noise]]."""
    largest = rows.abs().amax(1)
    zero, limit = torch.zeros_like(largest), torch.full_like(largest, to.largest)
    is_zero = largest < _LEAST_ABSMAX
    # Between a tensor and a number torch multiplies with a reciprocal: rounded twice.
    inverse = torch.where(is_zero, zero, limit / largest)
    scale = torch.where(is_zero, zero, largest / limit)
    q = to.rounded(rows * inverse[:, None])
    lost = (rows.double() - q.double() * scale[:, None].double()).square().sum()
    return q, scale, torch.stack((rows.double().square().sum(), lost))[None]


def dequantize(
    plain: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Give the float weight, a fresh one each time."""
    shape = (-1, *(1,) * (plain.dim() - 1))
    if plain.is_cuda and plain.dtype == torch.int8 and not is_in_graph():
        # In one kernel, to the same numbers.
        result = torch.empty_like(plain, dtype=dtype)
        return torch.mul(plain, scale.reshape(shape), out=result)
    return (plain.to(torch.float32) * scale.reshape(shape)).to(dtype)


def pack(int8: Tensor, groups: int = 1) -> Tensor:
    """Lay a weight [n, c, *taps] out as this CPU's kernels want it, or CUDA's."""
    with ordinary():
        if int8.is_cuda:
            return _pack_for_cuda(int8)
        c = extension()
        if c is None:
            return int8.reshape(-1).clone()
        return c.int8_pack(int8.contiguous(), groups)


def _pack_for_cuda(int8: Tensor) -> Tensor:
    """Lay [n, k] out as csrc/bind/torch/rows/cuda/quantized_linear_cuda.h wants it."""
    n, k = int8.shape
    padded = F.pad(int8, (0, -k % PAD, 0, -n % PAD))
    sums = int8.sum(1, dtype=torch.int32).view(torch.int8)
    width = padded.shape[1]
    return torch.cat((padded, F.pad(sums, (0, -len(sums) % width)).view(-1, width)))


def is_packed_for_cuda(packed: Tensor) -> bool:
    """Whether it is laid out for CUDA, wherever it is by now: the CPU's has one dim."""
    return packed.dim() == 2  # noqa: PLR2004


def unpack(packed: Tensor, sizes: Sequence[int], groups: int = 1) -> Tensor:
    """Give the weight that was packed, in its own shape."""
    with ordinary():
        if packed.is_meta:
            return torch.empty(tuple(sizes), dtype=torch.int8, device="meta")
        if is_packed_for_cuda(packed):
            n, k = sizes
            return packed[:n, :k].clone(memory_format=torch.contiguous_format)
        c = extension()
        if c is None:
            return packed.reshape(tuple(sizes)).clone()
        return c.int8_unpack(packed, tuple(sizes), groups)


def version_of(tensor: Tensor) -> int:
    """Its version; -1 for one made in inference mode, which has none."""
    return -1 if tensor.is_inference() else tensor._version


def sqnr_db(signal: float, noise: float) -> float:
    """Signal to quantization noise in dB; infinite where nothing was lost."""
    if noise <= 0:
        return math.inf
    ratio = signal / noise
    return -math.inf if ratio == 0 else 10 * math.log10(ratio)
