"""Which epilogues this device's cuBLASLt has, and what asking for one takes.

The heuristic alone is asked, by a function of the extension's that nothing else calls:
no product is run.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator

import torch

from benchmarks.extension import function, symbols
from benchmarks.gpu.rows import Row
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION = "epilogue"

EPILOGUES = {
    "none": 1,
    "BIAS": 4,
    "RELU_BIAS": 6,
    "GELU_BIAS": 36,
    "RELU_AUX_BIAS": 134,
    "GELU_AUX_BIAS": 164,
    "DRELU_BGRAD": 152,
    "DGELU_BGRAD": 208,
    "BGRADB": 512,
}
"""PTAC_LT_EPI_* of csrc/device/cuda/cublaslt.h."""

DTYPES = {
    "float32": (0, False, 4),
    "TF32": (0, True, 4),
    "float16": (4, False, 2),
    "bfloat16": (1, False, 2),
}
"""ptac_dtype of csrc/core/base.h, TF32, bytes."""

SIZES = {"aligned": (1024, 1024, 1024), "odd": (1021, 1021, 1021)}


def rows() -> Iterator[Row]:
    """A row an epilogue, dtype and alignment: supported, or refused."""
    if why := _open():
        yield Row(SECTION, "all", "", "", why)
        return
    probe: Callable[..., object] = function(
        "ptac_lt_probe", ctypes.c_bool,
        *(ctypes.c_int, ctypes.c_int, ctypes.c_bool, ctypes.c_int),
        *(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int),
    )  # fmt: skip
    function("ptac_lt_plan_clear", None)()
    for name, epilogue in EPILOGUES.items():
        for dtype, (number, is_tf32, item) in DTYPES.items():
            for kind, sizes in SIZES.items():
                alignment = 256 if kind == "aligned" else item
                args = 0, number, is_tf32, epilogue, *sizes, alignment
                start = time.perf_counter()
                has = probe(*args)
                asked = time.perf_counter()
                probe(*args)
                again = time.perf_counter()
                m, n, k = sizes
                yield Row(
                    SECTION,
                    f"{name}, {m}x{n}x{k}, {kind}",
                    dtype,
                    "heuristic",
                    "supported" if has else "refused",
                    best_us=1e6 * (again - asked),
                    median_us=1e6 * (asked - start),
                    note="times: from our table, and asked for the first time",
                )


def _open() -> str | None:
    """Find the library and open device 0; why that is not possible."""
    load = function("ptac_lt_load", ctypes.c_char_p, ctypes.c_void_p)
    why = load(symbols()["ptac_lt_names"])
    if why is None:
        capability = (9, 0) if is_emulated() else torch.cuda.get_device_capability(0)
        device_open = function(
            "ptac_lt_open", ctypes.c_char_p, ctypes.c_int, ctypes.c_int
        )
        why = device_open(0, 10 * capability[0] + capability[1])
    return why.decode() if isinstance(why, bytes) else None
