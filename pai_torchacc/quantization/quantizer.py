"""Int8 weights as numbers: quantized, measured, laid out for the kernels, and back.

One scale for each output channel, the first dimension: symmetric, round half to even,
-127 to 127. A channel of zeros has the scale 0. The extension does it where it can;
what stands here gives the same int8 and scales by torch's own operators.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host

WEIGHTS = ("weight", "in_proj_weight")
"""Names of the parameters that become int8."""

LARGEST = 127
PAD = 16
"""Rows and columns of weights on CUDA are multiples of it, filled up with zeros."""
_AT_ONCE = 1 << 24
"""Elements of a weight that torch's operators quantize at a time."""
_LEAST_ABSMAX = 2.0**-113
"""Below it the inverse of a scale is infinite or nearly so."""

is_compiling = torch.compiler.is_compiling
_is_tracing = torch._C._is_tracing


class Quantized(NamedTuple):
    """A weight in int8 and what it lost."""

    int8: Tensor
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


def quantize(weight: Tensor) -> Quantized | None:
    """Round a float32 weight [n, ...] on the CPU, or any on CUDA, to int8.

    None where it has NaN or Inf. ``signal`` and ``noise`` are sums of squares, of the
    weight and of what rounding changed.
    """
    with ordinary():
        weight = weight.detach().contiguous()
        c = None if weight.is_cuda else extension()
        if c is None:
            return _quantize(weight)
        made = c.int8_quantize(weight)
        return None if made is None else Quantized(*made)


def _quantize(weight: Tensor) -> Quantized | None:
    """Some rows at a time, for the sake of memory."""
    rows = weight.reshape(weight.shape[0], -1)
    parts = rows.split(max(1, _AT_ONCE // rows.shape[1]))
    made = [_quantized(part.to(torch.float32)) for part in parts]
    int8, scale, powers = (torch.cat(of) for of in zip(*made, strict=True))
    if not bool(torch.isfinite(scale).all()):
        return None
    signal, noise = powers.sum(0).tolist()
    return Quantized(int8.reshape(weight.shape), scale, signal, noise)


def _quantized(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows in int8, their scales, and [[signal, noise]]."""
    largest = rows.abs().amax(1)
    zero, limit = torch.zeros_like(largest), torch.full_like(largest, LARGEST)
    is_zero = largest < _LEAST_ABSMAX
    # Between a tensor and a number torch multiplies with a reciprocal: rounded twice.
    inverse = torch.where(is_zero, zero, limit / largest)
    scale = torch.where(is_zero, zero, largest / limit)
    q = torch.round(rows * inverse[:, None]).nan_to_num(0).to(torch.int8)
    lost = (rows.double() - q * scale[:, None].double()).square().sum()
    return q, scale, torch.stack((rows.double().square().sum(), lost))[None]


def dequantize(
    int8: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Give the float weight, a fresh one each time."""
    shape = (-1, *(1,) * (int8.dim() - 1))
    if int8.is_cuda and not is_in_graph():  # in one kernel, to the same numbers
        result = torch.empty_like(int8, dtype=dtype)
        return torch.mul(int8, scale.reshape(shape), out=result)
    return (int8.to(torch.float32) * scale.reshape(shape)).to(dtype)


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
    """Lay a weight [n, k] out as csrc/bind/torch/rows/int8_linear_cuda.h wants it."""
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


def saved_keys(prefix: str, name: str) -> tuple[str, str, str]:
    """Names in a state dict of an int8 weight, its scales and its record."""
    return f"{prefix}{name}_int8", f"{prefix}{name}_scale", f"{prefix}quantization"


def check_shape(key: str, tensor: Any, shape: tuple[int, ...]) -> None:
    """Raise ValueError, in stock's words, for what is no tensor of this shape."""
    if not isinstance(tensor, Tensor):
        raise ValueError(
            f'While copying the parameter named "{key}", expected torch.Tensor or '
            f"Tensor-like object from checkpoint but received {type(tensor)}"
        )
    if tensor.shape != shape:
        raise ValueError(
            f"size mismatch for {key}: copying a param with shape {tensor.shape} from "
            f"checkpoint, the shape in current model is {torch.Size(shape)}."
        )


def check(key: str, int8: Any, scale: Any, shape: tuple[int, ...] | None) -> None:
    """Raise ValueError where these are no ``key_int8`` and ``key_scale`` of a shape.

    Without a shape: of any.
    """
    if shape is None:
        shape = getattr(int8, "shape", ())
    for name, tensor, sizes, dtype in (
        (f"{key}_int8", int8, shape, torch.int8),
        (f"{key}_scale", scale, shape[:1], torch.float32),
    ):
        check_shape(name, tensor, sizes)
        if tensor.dtype != dtype or not sizes:
            raise ValueError(
                f"{name} should be {dtype} [n, ...], not {tensor.dtype} {list(sizes)}"
            )
    if int8.is_meta or scale.is_meta:
        return
    if not bool((torch.isfinite(scale) & (scale >= 0)).all()):
        raise ValueError(f"{key}_scale has values that are not finite and positive")
    if int8.numel() and int(int8.amin()) < -LARGEST:
        raise ValueError(f"{key}_int8 has values below -{LARGEST}")
