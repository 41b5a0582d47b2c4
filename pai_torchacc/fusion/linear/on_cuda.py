"""Torch's settings of matrix products on CUDA, which linear layers there follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_TAKES_F32, _TAKES_F16, _TAKES_BF16, ALLOWS_TF32 = 1, 2, 4, 8
"""Bits that the extension knows, see callpath/linear/cuda_products.c in csrc."""


def products() -> Callable[[], int]:
    """A function that tells, in bits, what the settings of the moment allow.

    Where algorithms have to be deterministic stock decides, and says where it cannot be
    so. Sums of 16-bit products are kept in float32, whatever less a program allows;
    one that wants sums in 16 bits, for their speed, or no sums of parts gets stock's.
    """
    c = torch._C
    deterministic = c._get_deterministic_algorithms
    precision = getattr(c, "_get_fp32_precision_getter", None)
    sums_in_fp16 = getattr(c, "_get_cublas_allow_fp16_accumulation", lambda: False)
    fp16_parts = c._get_cublas_allow_fp16_reduced_precision_reduction
    bf16_parts = c._get_cublas_allow_bf16_reduced_precision_reduction

    def float32() -> int:
        if precision is None:
            return _TAKES_F32 | ALLOWS_TF32 * c._get_cublas_allow_tf32()
        match precision("cuda", "matmul"):
            case "tf32":
                return _TAKES_F32 | ALLOWS_TF32
            case "ieee" | "none":
                return _TAKES_F32
            case _:
                return 0

    def ask() -> int:
        if deterministic():
            return 0
        bits = float32()
        if _may_be_parts(fp16_parts()) and not sums_in_fp16():
            bits |= _TAKES_F16
        if _may_be_parts(bf16_parts()):
            bits |= _TAKES_BF16
        return bits

    return ask


def _may_be_parts(setting: Any) -> bool:
    """Whether the terms of a sum may be divided (split-K), as newer torch tells."""
    return setting[1] if isinstance(setting, tuple) else True
