"""LayerNorm and RMSNorm of rows, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F

from pai_torchacc.bench.cases.case import Call, Case

ROWS: dict[str, tuple[tuple[tuple[int, int], ...], ...]] = {
    "short": (
        ((16, 64), (4, 256)),
        ((128, 64), (32, 256), (8, 1024)),
        ((256, 256), (64, 1024), (128, 768)),
        ((4096, 64), (1024, 256), (512, 768)),
        ((8192, 256), (2048, 1024), (4096, 768)),
    ),
    "long": (
        ((4, 2048), (2, 4096)),
        ((32, 2048), (16, 4096)),
        ((512, 2048), (256, 4096)),
        ((2048, 2048), (1024, 4096)),
    ),
}
"""Rows and their width, by shape kind and size."""

SLOW = 100_000
"""Elements from which the row "scalar" takes long, and is not measured."""


def cases() -> Iterator[Case]:
    """Cases of all; the work is the least of those at a size."""
    for kind, sizes in ROWS.items():
        for shapes in sizes:
            work = min(n * width for n, width in shapes)
            slow = ("scalar",) if work > SLOW else ()
            for name, make in (("", _forward), ("_backward", _backward)):
                yield Case(
                    f"layer_norm{name}",
                    kind,
                    "float32",
                    work,
                    tuple(partial(make, *shape) for shape in shapes),
                    without_rows=slow,
                )
            for prefix, make in (("", _rms_norm), ("train_", _trained_rms_norm)):
                yield Case(
                    *("rms_norm", prefix + kind, "float32", work),
                    tuple(partial(make, *shape) for shape in shapes),
                    with_ops=("rms_norm_backward",) if prefix else (),
                    without_rows=slow,
                )


def _forward(n: int, width: int) -> Call:
    x, weight, bias = torch.randn(n, width), torch.rand(width), torch.randn(width)
    norm = torch.ops.aten.native_layer_norm
    return lambda: norm(x, [width], weight, bias, 1e-5)


def _backward(n: int, width: int) -> Call:
    x, weight, bias = torch.randn(n, width), torch.rand(width), torch.randn(width)
    _, mean, rstd = torch.native_layer_norm(x, [width], weight, bias, 1e-5)
    grad, wanted = torch.randn(n, width), [True, True, True]
    gradient = torch.ops.aten.native_layer_norm_backward
    return lambda: gradient(grad, x, [width], mean, rstd, weight, bias, wanted)


def _rms_norm(n: int, width: int) -> Call:
    x, weight = torch.randn(n, width), torch.rand(width)
    return lambda: F.rms_norm(x, [width], weight, 1e-6)


def _trained_rms_norm(n: int, width: int) -> Call:
    """With the gradients of x and the weight."""
    x, weight = torch.randn(n, width), torch.rand(width)
    grad, wanted = torch.randn(n, width), [x.requires_grad_(), weight.requires_grad_()]

    def run() -> tuple[torch.Tensor, ...]:
        y = F.rms_norm(x, [width], weight, 1e-6)
        return torch.autograd.grad(y, wanted, grad)

    return run
