"""Optimizer steps over one parameter; the table counts elements."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from pai_torchacc.bench.cases.case import FLOATS, Call, Case

SIZES = (256, 4096, 65536, 1 << 20, 1 << 22)

STEPS: tuple[tuple[str, Any, dict[str, Any]], ...] = (
    ("sgd_step", torch.optim.SGD, {"momentum": 0.9}),
    ("adam_step", torch.optim.Adam, {}),
    ("adamw_step", torch.optim.AdamW, {}),
    ("adadelta_step", torch.optim.Adadelta, {}),
    ("rmsprop_step", torch.optim.RMSprop, {"momentum": 0.9}),
    ("adagrad_step", torch.optim.Adagrad, {}),
    ("nadam_step", torch.optim.NAdam, {}),
)

# By kind of the table: what is asked of torch, and of which operators it can be.
WAYS: tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...] = (
    ("dense", {}, tuple(op for op, _, _ in STEPS)),
    ("foreach", {"foreach": True}, tuple(op for op, _, _ in STEPS)),
    ("fused", {"fused": True}, ("sgd_step", "adam_step", "adamw_step", "adagrad_step")),
)


def cases() -> Iterator[Case]:
    """Cases of the optimizers."""
    for op, cls, options in STEPS:
        for kind, asked, ops in WAYS:
            if op not in ops:
                continue
            for dtype in ("float32", "float64"):
                for n in SIZES:
                    make = partial(_make, cls, options | asked, n, dtype)
                    yield Case(op, kind, dtype, n, (make,))


def _make(cls: Any, options: dict[str, Any], n: int, dtype: str) -> Call:
    parameter = torch.nn.Parameter(torch.randn(n, dtype=FLOATS[dtype]))
    parameter.grad = torch.randn_like(parameter)
    return cls([parameter], lr=1e-4, **options).step
