"""A Linear with its activation, by stock and accelerated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import switching
import torch
from torch import Tensor, nn

OPS = ("linear_act", "linear_act_backward")


def pair() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.ReLU())


def close(ours: Any, stock: Any) -> None:
    torch.testing.assert_close(ours, stock, check_stride=True)


def off_and_on(
    program: Callable[[], Any],
    accelerated: int | None,
    calls: int | None = None,
    **options: Any,
) -> None:
    """Alike by stock and ours; how many calls were accelerated."""
    stock = program()
    with switching.accelerated(*OPS, **options):
        hits = switching.hits(OPS[0])
        ours = program()
        if accelerated is not None:
            assert hits.accelerated == accelerated, hits
        if calls is not None:
            assert hits.accelerated + sum(hits.forwarded.values()) == calls, hits
    close(ours, stock)


def run(net: nn.Module, x: Tensor | None = None) -> Any:
    """Output and whatever gradients there are."""
    if x is None:
        torch.manual_seed(1)
        x = torch.randn(40, 20)
    y = net(x)
    if not y.requires_grad:
        return y
    wanted = [t for t in (x, *net.parameters()) if t.requires_grad]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), wanted)]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``nn.Linear`` with this weight and bias, which need not be parameters."""
    layer = nn.Linear.__new__(nn.Linear)
    nn.Module.__init__(layer)
    layer.weight, layer.bias = weight, bias
    return layer(x)
