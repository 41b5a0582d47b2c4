"""What the device itself can do: copies, and products of large matrices."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu.rows import Row, failed, first_line
from benchmarks.gpu.timing import Call, Setting, alternate, stock
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION, COPY = "device", "copy"

DTYPES = ("float32", "TF32", "float16", "bfloat16", "int8", "float8")
NOT_EVERYWHERE = frozenset({"int8", "float8"})
"""Products that some devices and builds of torch refuse."""


def rows(setting: Setting) -> Iterator[Row]:
    """A row of the copy, then of products."""
    yield _copy(1 << 12 if is_emulated() else 1 << 30, setting)
    n = 32 if is_emulated() else 8192
    for name in DTYPES:
        case = f"product of {n} x {n} x {n}"
        try:
            yield _product(case, name, n, setting)
        except RuntimeError as error:
            if name in NOT_EVERYWHERE:
                yield Row(SECTION, case, name, "", "refused", note=first_line(error))
            else:
                yield failed(SECTION, case, name, error)


def _copy(n_bytes: int, setting: Setting) -> Row:
    x = torch.ones(n_bytes, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    timing = alternate({COPY: (stock, lambda: y.copy_(x))}, setting)[COPY]
    return Row(
        SECTION,
        f"{COPY} of {n_bytes >> 10} KiB",
        "uint8",
        "measured",
        "",
        timing.best * 1e6,
        timing.median * 1e6,
        gb_s=2 * n_bytes / timing.best / 1e9,
        copy_share=1.0,
    )


def _product(case: str, name: str, n: int, setting: Setting) -> Row:
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = name == "TF32"
    try:
        timing = alternate({name: (stock, _call(name, n))}, setting)[name]
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return Row(
        SECTION,
        case,
        name,
        "measured",
        "",
        timing.best * 1e6,
        timing.median * 1e6,
        tflop_s=2 * n**3 / timing.best / 1e12,
    )


def _call(name: str, n: int) -> Call:
    if name == "int8":
        i, j = (torch.ones(n, n, dtype=torch.int8, device="cuda") for _ in range(2))
        return lambda: torch._int_mm(i, j.t())
    if name == "float8":
        a, b = (_random(n).to(torch.float8_e4m3fn) for _ in range(2))
        scales = torch.ones(n, 1, device="cuda"), torch.ones(1, n, device="cuda")
        return lambda: torch._scaled_mm(a, b.t(), *scales, out_dtype=torch.bfloat16)
    dtype = torch.float32 if name == "TF32" else getattr(torch, name)
    x, y = _random(n).to(dtype), _random(n).to(dtype)
    return lambda: x @ y.t()


def _random(n: int) -> Tensor:
    return torch.randn(n, n, device="cuda")
