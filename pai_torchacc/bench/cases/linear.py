"""Linear layers, alone and followed by an activation, for inference and training."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from pai_torchacc.bench.cases.case import Call, Case

SHAPES = (
    (8, 64, 64),
    (32, 128, 64),
    (64, 128, 128),
    (64, 256, 256),
    (64, 512, 128),
    (64, 1000, 64),
    (64, 512, 512),
    (256, 256, 256),
    (64, 784, 1024),
    (64, 3072, 768),
    (128, 768, 768),
    (196, 2048, 512),
    (512, 512, 512),
    (512, 3072, 768),
    (1024, 256, 1024),
    (1024, 1024, 1024),
)
"""Products as (rows of x, terms, rows of the weight)."""


def cases() -> Iterator[Case]:
    """Cases of linear_act; with gradients, forward and backward are timed together."""
    for m, k, n in SHAPES:
        for act in ("", "_act"):
            for way in ("infer", "train"):
                make = partial(_make, m, k, n, bool(act), way == "train")
                others = ("linear_act_backward",)
                yield Case(
                    "linear_act", way + act, "float32", (m, k, n), (make,), others
                )


def _make(m: int, k: int, n: int, has_act: bool, is_training: bool) -> Call:
    layers: list[torch.nn.Module] = [torch.nn.Linear(k, n)]
    if has_act:
        layers.append(torch.nn.ReLU())
    net, x = torch.nn.Sequential(*layers), torch.randn(m, k)
    if not is_training:
        net.requires_grad_(False)
        return lambda: net(x)
    x.requires_grad_()
    grad, wanted = torch.randn(m, n), [x, *net.parameters()]
    return lambda: torch.autograd.grad(net(x), wanted, grad)
