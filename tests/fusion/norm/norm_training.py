"""A BatchNorm in training and the activation behind it, by stock and accelerated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import switching
import torch
from torch import Tensor, nn

OPS = ("batch_norm_act", "batch_norm_act_backward")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu_": lambda: nn.ReLU(inplace=True),
    "relu6": nn.ReLU6,
    "silu_": lambda: nn.SiLU(inplace=True),
    "hardswish": nn.Hardswish,
}
LAYOUTS = torch.contiguous_format, torch.channels_last


NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
"""By the dimensions of what they take."""


def chain(
    channels: int, act: str = "relu6", *, n_dims: int = 4, **options: Any
) -> nn.Sequential:
    """With parameters and statistics that are not those of a new one."""
    norm = NORMS[n_dims](channels, **options)
    with torch.no_grad():
        for t in (*norm.parameters(), norm.running_mean):
            if t is not None:
                t.normal_()
        if norm.running_var is not None:
            norm.running_var.uniform_(0.3, 2)
    return nn.Sequential(norm, ACTIVATIONS[act]())


def both(
    run: Callable[[], Any], n: int = 1, backward: int | None = None
) -> tuple[Any, Any]:
    """What stock makes, and what we do, with so many calls served."""
    torch.manual_seed(0)
    expected = run()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        torch.manual_seed(0)
        result = run()
        assert [h.accelerated for h in hits] == [n, n if backward is None else backward]
    return expected, result


def agree(run: Callable[[], Any], n: int = 1, backward: int | None = None) -> None:
    expected, result = both(run, n, backward)
    torch.testing.assert_close(
        result, expected, rtol=1e-4, atol=1e-5, check_stride=True
    )


def trained(net: nn.Sequential, x: Tensor, steps: int = 1) -> list[Tensor]:
    """Results, gradients and buffers of some steps; weights follow the gradients."""
    seen: list[Tensor] = []
    for i in range(steps):
        net.zero_grad()
        leaf = (x + i if i else x).detach().requires_grad_()
        y = net(leaf)
        y.backward(torch.cos(3 * y.detach() + i))
        seen += [y.detach(), leaf.grad]
        with torch.no_grad():
            for p in net.parameters():
                seen.append(p.grad.clone())
                p.sub_(0.1 * p.grad / p.grad.norm())
    return [*seen, *(b.clone() for b in net.buffers())]
