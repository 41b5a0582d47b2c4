"""Cross-entropy and log-softmax: short rows, long rows, class probabilities."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.bench.cases.case import Call, Case, Make

SHORT = ((16, 10), (128, 10), (1024, 10), (512, 64), (8192, 64))
LONG = ((4, 100), (32, 128), (64, 1000), (256, 1000), (256, 10000), (1024, 10000))
"""Logits as (rows, classes)."""


def cases() -> Iterator[Case]:
    """Cases of the losses, forward and backward."""
    for kind, shapes in (("short", SHORT), ("long", LONG)):
        for n, classes in shapes:
            yield _log_softmax("log_softmax", kind, n, classes)
            yield _log_softmax("log_softmax_backward", kind, n, classes)
    for kind, shapes in (
        ("short", SHORT),
        ("long", LONG),
        ("probabilities", (*SHORT[1:3], *LONG[1:])),
    ):
        for n, classes in shapes:
            yield _cross_entropy(kind, n, classes)


def _log_softmax(op: str, kind: str, n: int, classes: int) -> Case:
    def forward() -> Call:
        x = torch.randn(n, classes)
        return lambda: torch.log_softmax(x, 1)

    def backward() -> Call:
        y = torch.log_softmax(torch.randn(n, classes), 1)
        grad = torch.randn_like(y)
        aten = torch.ops.aten
        return lambda: aten._log_softmax_backward_data(grad, y, 1, torch.float32)

    make: Make = backward if op.endswith("backward") else forward
    return Case(op, kind, "float32", n * classes, (make,))


def _target(kind: str, n: int, classes: int) -> Tensor:
    if kind == "probabilities":
        return torch.softmax(torch.randn(n, classes), 1)
    return torch.randint(0, classes, (n,))


def _cross_entropy(kind: str, n: int, classes: int) -> Case:
    """The loss alone and with its gradient, which follows the row of the loss."""

    def forward(smoothing: float) -> Call:
        x, target = torch.randn(n, classes), _target(kind, n, classes)
        return lambda: F.cross_entropy(x, target, label_smoothing=smoothing)

    def both() -> Call:
        x = torch.randn(n, classes, requires_grad=True)
        target = _target(kind, n, classes)
        return lambda: torch.autograd.grad(F.cross_entropy(x, target), x)

    makes: tuple[Make, ...] = (both, partial(forward, 0.0), partial(forward, 0.1))
    op = "cross_entropy"
    stock_calls = ("log_softmax", "log_softmax_backward")
    rivals = () if kind == "probabilities" else stock_calls
    return Case(op, kind, "float32", n * classes, makes, (f"{op}_backward",), rivals)
