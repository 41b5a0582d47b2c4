"""Calls of every operator at many sizes, for calibration.

A case is a place in a calibration table (operator, kind, dtype, work) and one or more
calls that lie there; the table keeps the worst of their ratios. Calls go through
torch's public functions, so that what calibration times is what programs pay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Call = Callable[[], Any]
Make = Callable[[], Call]

FLOATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Case:
    """One place; each of ``variants`` builds a call there."""

    op: str
    kind: str
    dtype: str
    work: int
    variants: tuple[Make, ...]
    with_ops: tuple[str, ...] = ()
    """Other operators that the call needs switched on."""


def cases() -> Iterator[Case]:
    """Every case, cheap to list: tensors are made when a variant is built."""
    yield from _max_pool2d()
    yield from _average_pools()
    yield from _log_softmax()
    yield from _cross_entropy()
    yield from _linear()
    yield from _optimizers()


IMAGES = (
    (1, 8, 8, 8),
    (4, 16, 14, 14),
    (8, 32, 28, 28),
    (64, 32, 28, 28),
    (32, 64, 56, 56),
)
WINDOWS = ((2, 2, 0), (3, 2, 1))


def _image(shape: tuple[int, ...], dtype: str, layout: str) -> Tensor:
    x = torch.randn(shape).to(FLOATS[dtype])
    return x.to(memory_format=torch.channels_last) if layout == "nhwc" else x


def _numel(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())


def _max_pool2d() -> Iterator[Case]:
    aten = torch.ops.aten
    for dtype in FLOATS:
        for shape in IMAGES:
            for kind, windows in (
                ("nchw", WINDOWS),
                ("nchw_far", ((3, 3, 0),)),
                ("nhwc", WINDOWS),
            ):

                def forward(shape=shape, dtype=dtype, kind=kind, window=None) -> Call:
                    x = _image(shape, dtype, kind)
                    return lambda: F.max_pool2d(x, *window)

                variants = tuple(lambda w=w, f=forward: f(window=w) for w in windows)
                yield Case("max_pool2d", kind, dtype, _numel(shape), variants)

            for kind, windows in (
                ("nchw_tiled", ((2, 2, 0),)),
                ("nchw", ((3, 2, 1),)),
                ("nhwc", WINDOWS),
            ):

                def backward(shape=shape, dtype=dtype, kind=kind, window=None) -> Call:
                    x = _image(shape, dtype, kind)
                    y, indices = F.max_pool2d(x, *window, return_indices=True)
                    k, s, p = ([n, n] for n in window)
                    grad = torch.randn_like(y)
                    return lambda: aten.max_pool2d_with_indices_backward(
                        grad, x, k, s, p, [1, 1], False, indices
                    )

                variants = tuple(lambda w=w, f=backward: f(window=w) for w in windows)
                yield Case("max_pool2d_backward", kind, dtype, _numel(shape), variants)


def _average_pools() -> Iterator[Case]:
    return iter(())


def _log_softmax() -> Iterator[Case]:
    return iter(())


def _cross_entropy() -> Iterator[Case]:
    return iter(())


LINEAR_SHAPES = (
    (8, 64, 64),
    (32, 128, 64),
    (64, 128, 128),
    (64, 512, 128),
    (64, 1000, 64),
    (64, 512, 512),
    (256, 256, 256),
    (64, 784, 1024),
    (512, 512, 512),
    (1024, 256, 1024),
    (1024, 1024, 1024),
)


def _linear() -> Iterator[Case]:
    for m, k, n in LINEAR_SHAPES:
        for with_act in (False, True):
            for training in (False, True):

                def make(m=m, k=k, n=n, act=with_act, training=training) -> Call:
                    layers: list[torch.nn.Module] = [torch.nn.Linear(k, n)]
                    if act:
                        layers.append(torch.nn.ReLU())
                    net, x = torch.nn.Sequential(*layers), torch.randn(m, k)
                    if not training:
                        net.requires_grad_(False)
                        return lambda: net(x)
                    x.requires_grad_()
                    grad, wanted = torch.randn(m, n), [x, *net.parameters()]
                    return lambda: torch.autograd.grad(net(x), wanted, grad)

                kind = ("train" if training else "infer") + ("_act" if with_act else "")
                yield Case(
                    "linear_act",
                    kind,
                    "float32",
                    m * k * n,
                    (make,),
                    ("linear_act_backward",),
                )


STEP_SIZES = (256, 4096, 65536, 1 << 20, 1 << 22)


def _optimizers() -> Iterator[Case]:
    for op, cls, options in (
        ("sgd_step", torch.optim.SGD, {"momentum": 0.9}),
        ("adam_step", torch.optim.Adam, {}),
        ("adamw_step", torch.optim.AdamW, {}),
    ):
        for dtype in ("float32", "float64"):
            for n in STEP_SIZES:

                def make(n=n, cls=cls, options=options, dtype=dtype) -> Call:
                    parameter = torch.nn.Parameter(torch.randn(n, dtype=FLOATS[dtype]))
                    parameter.grad = torch.randn_like(parameter)
                    return cls([parameter], lr=1e-4, **options).step

                yield Case(op, "dense", dtype, n, (make,))
