"""Batch normalization: layers of networks for images, sequences, volumes and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from pai_torchacc.bench.cases.case import Call, Case, Make

Shape = tuple[int, ...]

SHAPES: dict[str, tuple[tuple[Shape, ...], ...]] = {
    "nchw": (
        ((1, 8, 8, 8), (2, 4, 100)),
        ((1, 32, 14, 14), (4, 16, 8, 12)),
        ((4, 64, 14, 14), (2, 8, 56, 56)),
        ((16, 64, 14, 14), (4, 64, 28, 28), (8, 2, 112, 112)),
        ((16, 256, 14, 14), (8, 16, 8, 16, 16), (16, 16, 56, 56)),
        ((32, 64, 32, 32), (16, 512, 16, 16), (8, 16, 128, 128)),
        ((16, 24, 112, 112), (32, 192, 28, 28)),
    ),
    "nchw_small": (
        ((1, 32, 7, 7), (2, 32, 5, 5)),
        ((1, 128, 7, 7), (2, 256, 4, 4)),
        ((2, 320, 7, 7), (4, 512, 3, 5)),
        ((4, 960, 7, 7), (8, 512, 5, 5), (32, 160, 7, 7)),
        ((32, 512, 7, 7), (8, 2048, 7, 7)),
    ),
    "nchw_columns": (
        ((32, 4, 3, 3), (16, 16, 2, 2)),
        ((32, 32, 2, 2), (16, 16, 4, 4)),
        ((64, 64, 3, 3), (128, 128, 2)),
        ((64, 128, 5, 5), (128, 512, 2, 2), (64, 64, 7, 7)),
        ((64, 960, 7, 7), (128, 512, 4, 4)),
    ),
    "nhwc": (
        ((16, 32), (1, 16, 8, 4)),
        ((128, 64), (1, 32, 14, 14)),
        ((64, 512), (1, 64, 28, 28)),
        ((256, 1024), (4, 64, 28, 28), (2048, 96)),
        ((16, 256, 14, 14), (8, 16, 8, 16, 16), (1024, 1024)),
        ((32, 64, 32, 32), (16, 512, 16, 16), (64, 960, 7, 7)),
        ((16, 24, 112, 112), (1024, 4096)),
    ),
    "nhwc_narrow": (
        ((64, 8), (1, 8, 8, 8)),
        ((512, 10), (2, 3, 32, 32)),
        ((4096, 12), (4, 8, 40, 40)),
        ((16, 3, 64, 64), (8, 8, 56, 56)),
        ((16, 12, 112, 112), (32, 3, 128, 128)),
    ),
}
"""By shape kind and size: tensors, of which NHWC has those with channels last."""

ACTIVATIONS = (nn.ReLU, nn.SiLU)
"""Behind a norm: the cheapest, and one that takes time of its own."""

NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
"""By the dimensions of what they take."""

HOPELESS = 10_000
"""Elements from which the row "scalar" takes long, and is not measured."""


def cases() -> Iterator[Case]:
    """Cases of batch normalization alone, and with an activation behind it."""
    yield from _alone()
    yield from _with_activations()


def _alone() -> Iterator[Case]:
    """In training and evaluation, forward and backward."""
    for prefix in ("", "eval_"):
        for kind, sizes in SHAPES.items():
            for shapes in sizes:
                training = not prefix
                # The least work of those that a table's place stands for.
                work = min(math.prod(shape) for shape in shapes)
                for op, make in (("", _forward), ("_backward", _backward)):
                    makes: list[Make] = [
                        partial(make, shape, kind.startswith("nhwc"), training)
                        for shape in shapes
                    ]
                    name = f"batch_norm{op}"
                    slow = ("scalar",) if work > HOPELESS else ()
                    yield Case(
                        name,
                        prefix + kind,
                        "float32",
                        work,
                        tuple(makes),
                        without_rows=slow,
                    )


def _with_activations() -> Iterator[Case]:
    """In evaluation, forward; in training, forward and backward together."""
    for kind, sizes in SHAPES.items():
        yield from _in_training(kind, sizes)
        if kind == "nchw_columns":  # small images of many, which are nchw_small here
            continue
        for size in sizes:
            shapes, work = _behind(kind, size)
            makes: list[Make] = [
                partial(_chain, shape, kind.startswith("nhwc"), activation)
                for shape in shapes
                for activation in ACTIVATIONS
            ]
            slow = ("scalar",) if work > HOPELESS else ()
            yield Case(
                "batch_norm_act",
                kind,
                "float32",
                work,
                tuple(makes),
                without_rows=slow,
            )


def _behind(kind: str, size: tuple[Shape, ...]) -> tuple[list[Shape], int]:
    """Give what may have an activation behind it, and its least work."""
    shapes = [s for s in size if not (kind.startswith("nhwc") and len(s) > len("NCHW"))]
    images = [math.prod(shape) for shape in shapes if len(shape) == len("NCHW")]
    return shapes, min(images)


def _in_training(kind: str, sizes: tuple[tuple[Shape, ...], ...]) -> Iterator[Case]:
    for size in sizes:
        shapes, work = _behind(kind, size)
        makes: list[Make] = [
            partial(_training, shape, kind.startswith("nhwc"), activation)
            for shape in shapes
            for activation in ACTIVATIONS
        ]
        yield Case(
            "batch_norm_act",
            f"train_{kind}",
            "float32",
            work,
            tuple(makes),
            with_ops=("batch_norm_act_backward",),
            without_rows=("scalar",) if work > HOPELESS else (),
            forwarded_to=("batch_norm", "batch_norm_backward"),
        )


def _draw(shape: Shape, channels_last: bool) -> Tensor:
    x = torch.randn(shape)
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if channels_last and len(shape) in formats:
        return x.to(memory_format=formats[len(shape)])
    return x


def _forward(shape: Shape, channels_last: bool, training: bool) -> Call:
    x, n = _draw(shape, channels_last), shape[1]
    weight, bias = torch.rand(n), torch.randn(n)
    mean, var = torch.zeros(n), torch.ones(n)
    norm = torch.native_batch_norm
    return lambda: norm(x, weight, bias, mean, var, training, 0.1, 1e-5)


def _chain(shape: Shape, channels_last: bool, activation: type[nn.Module]) -> Call:
    x = _draw(shape, channels_last)
    net = nn.Sequential(NORMS[len(shape)](shape[1]), activation()).eval()
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    return lambda: net(x)


def _training(shape: Shape, channels_last: bool, activation: type[nn.Module]) -> Call:
    x = _draw(shape, channels_last).requires_grad_()
    net = nn.Sequential(NORMS[len(shape)](shape[1]), activation())
    grad, wanted = torch.randn_like(x), [x, *net.parameters()]
    return lambda: torch.autograd.grad(net(x), wanted, grad)


def _backward(shape: Shape, channels_last: bool, training: bool) -> Call:
    x, n = _draw(shape, channels_last), shape[1]
    grad, weight = torch.randn_like(x), torch.rand(n)
    mean, var = torch.zeros(n), torch.ones(n)
    saved = (mean, var) if training else (None, None)
    backward = torch.ops.aten.native_batch_norm_backward
    wanted = [True, True, True]
    return lambda: backward(grad, x, weight, mean, var, *saved, training, 1e-5, wanted)
