"""What tests of ReLU with the max pooling behind it, on CUDA, have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from switching import hits
from torch import Tensor

NAMES = "relu_max_pool2d", "relu_max_pool2d_backward"
WINDOWS: dict[str, dict[str, Any]] = {
    "halves": {"kernel_size": 2},
    "overlapping": {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
    "dilated": {"kernel_size": (2, 3), "stride": (1, 2), "dilation": (2, 1)},
    "one row": {"kernel_size": (1, 5), "stride": (2, 1), "padding": (0, 2)},
}


def image(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """With ties, zeros of both signs, windows below zero, infinities and NaN."""
    x = torch.randn(sizes).mul(2).round().div(2)
    flat = x.view(-1)
    flat[::17], flat[::23], flat[::29] = torch.nan, -torch.inf, torch.inf
    flat[: flat.numel() // 4].abs_().neg_()
    return x.to(dtype)


def counted() -> list[Any]:
    return [hits(name) for name in NAMES]


def served(counts: list[Any]) -> list[int]:
    return [c.accelerated for c in counts]


def in_steps(x: Tensor, **window: Any) -> Tensor:
    return F.max_pool2d(F.relu(x), **window)


def with_gradient(pool: Callable[..., Tensor], x: Tensor, **window: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    y = pool(x, **window)
    weights = torch.arange(y.numel(), dtype=torch.float32).view(y.shape).sin()
    y.backward(weights.to(y))
    assert x.grad is not None
    return [y.detach(), x.grad]


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for ours, stock in zip(found, expected, strict=True):
        assert ours.is_cuda
        assert ours.stride() == stock.stride()
        assert torch.equal(ours.cpu().nan_to_num(7), stock.nan_to_num(7))
