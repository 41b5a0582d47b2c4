"""Tensors that our nodes save, and those who hook into saving."""

from __future__ import annotations

from collections.abc import Callable

import internals
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac

OPS = ("linear_act", "linear_act_backward", "cross_entropy", "cross_entropy_backward")


def gradients(
    between: Callable[[], object] = lambda: None, n: int = 64
) -> list[Tensor]:
    """Of a checkpointed part; something happens between it and its repetition."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(n, n), nn.ReLU(), nn.Linear(n, n))
    x, y = torch.randn(64, n, requires_grad=True), torch.randint(0, n, (64,))
    loss = checkpoint(lambda x: F.cross_entropy(net(x), y), x, use_reentrant=False)
    between()
    loss.backward()
    return [x.grad, *(p.grad for p in net.parameters())]


BETWEEN: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "disabled": ptac.disable,
    "enabled": ptac.enable,
    "a fault": lambda: internals.inject_failure("linear_act"),
}


@pytest.mark.parametrize("what", BETWEEN)
@pytest.mark.parametrize("n", [32, 64])
def test_checkpoints_do_not_depend_on_switches(what: str, n: int) -> None:
    expected = gradients(n=n)
    try:
        if what == "enabled":
            with switching.pins(OPS):
                found = gradients(BETWEEN[what], n)
                ptac.disable()
        else:
            with switching.accelerated(*OPS):
                hits = switching.hits("linear_act")
                found = gradients(BETWEEN[what], n)
                assert hits.forwarded["hooks"] >= 2
    finally:
        internals.inject_failure("linear_act")  # used up below
        with switching.accelerated(*OPS), torch.no_grad():
            nn.Linear(32, 32)(torch.randn(64, 32))
        internals.reset_quarantine()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_hooks_on_saved_tensors_see_what_stock_saves() -> None:
    def seen() -> list[tuple[int, ...]]:
        shapes: list[tuple[int, ...]] = []

        def pack(t: Tensor) -> Tensor:
            shapes.append(tuple(t.shape))
            return t

        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(20, 30), nn.GELU())
        x, y = torch.randn(40, 20), torch.randint(0, 30, (40,))
        with saved_tensors_hooks(pack, lambda t: t):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        return shapes

    stock = seen()
    with switching.accelerated(*OPS):
        assert seen() == stock


def test_saving_on_the_cpu() -> None:
    def work() -> list[Tensor]:
        with save_on_cpu():
            return gradients()

    expected = work()
    with switching.accelerated(*OPS):
        found = work()
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
