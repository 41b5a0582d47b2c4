"""Quantized linear layers beside the same layer in bfloat16, and beside torch's fp8.

Rows are quantized in the call, by ours as by what torch offers for it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.gpu.rows import Row, first_line, named, row
from benchmarks.gpu.timing import Call, Setting, alternate, served, stock
from pai_torchacc.bench.measure_cuda import is_emulated

SECTION, RIVAL = "quantized", "_scaled_mm"
FORMATS = ("int8", "fp8")

Shape = tuple[int, int, int]

SHAPES: tuple[Shape, ...] = tuple(
    (m, n, k) for n, k in ((11008, 4096), (4096, 4096)) for m in (256, 1024, 4096)
)
"""Rows, outputs, inputs."""
TINY: Shape = (20, 32, 48)
_LARGEST = 448
_DTYPE = torch.bfloat16


def rows(setting: Setting) -> Iterator[Row]:
    """Each shape, while time is left."""
    for shape in (TINY,) if is_emulated() else SHAPES:
        if setting.budget.left < 0:
            return
        yield from measure(shape, setting)


def measure(shape: Shape, setting: Setting) -> Iterator[Row]:
    """Rows of stock, of both formats and of torch's product of fp8."""
    m, n, k = shape
    case = f"Linear, {m}x{n}x{k}, forward"
    layer = nn.Linear(k, n, device="cuda", dtype=_DTYPE).requires_grad_(False).eval()
    x = torch.randn(m, k, device="cuda").to(_DTYPE)
    variants: dict[str, tuple[Call, Call]] = {"stock": (stock, _call(layer, x))}
    found = {}
    for name in FORMATS:
        quantized = ptac.quantize_model(copy.deepcopy(layer), method=name)
        variants[name] = _switched_on, _call(quantized, x)
        found[name] = served((f"{name}_linear",), variants[name][1])
    try:
        rival = _scaled(layer, x)
        rival()
        variants[RIVAL] = stock, rival
    except RuntimeError as error:
        note = first_line(error)
        yield Row(SECTION, case, named(_DTYPE), RIVAL, "refused", note=note)
    timings = alternate(variants, setting)
    for variant, timing in timings.items():
        yield row(
            (SECTION, case, _DTYPE, variant),
            found.get(variant, ""),
            timing,
            timings["stock"],
            0.0,
            2 * m * n * k,
            setting,
        )


def _switched_on() -> None:
    ptac.disable()
    ptac.enable_model_quantization()


def _call(layer: nn.Module, x: Tensor) -> Call:
    return lambda: layer(x)


def _scaled(layer: nn.Linear, x: Tensor) -> Call:
    """As programs write it: rows by torch's operators, one launch each."""
    weight, of_weight = _by_row(layer.weight)

    def call() -> Tensor:
        q, scale = _by_row(x)
        return torch._scaled_mm(
            q, weight.t(), scale, of_weight.t(), layer.bias, out_dtype=_DTYPE
        )

    return call


def _by_row(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.abs().amax(1, keepdim=True).float() / _LARGEST
    return (x / scale).clamp(-_LARGEST, _LARGEST).to(torch.float8_e4m3fn), scale
