"""Gradients of linear layers on CUDA, as autograd asks for them."""

from __future__ import annotations

import copy
from typing import Any

import linear_layers
import pytest
import torch
from linear_layers import ACTIVATIONS, BACKWARD, FORWARD, layer, step
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_double_backward(on: Any, activation: str) -> None:
    """By torch's own operators, from what the node has kept."""

    def second(net: nn.Module, x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        first = torch.autograd.grad(net(x).square().sum(), x, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), x)[0].cpu()

    net, x = layer(6, 9, activation), torch.randn(4, 6, device="cuda")
    counted, back = hits(FORWARD), hits(BACKWARD)
    found = second(net, x)
    assert counted.accelerated == 1
    assert back.forwarded.keys() == {"gradient not supported"}
    with ptac.disabled():
        expected = second(net, x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wanted", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1)])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_gradients_of_some(
    on: Any, activation: str, wanted: tuple[int, int, int]
) -> None:
    net, x = layer(6, 9, activation), torch.randn(4, 6, device="cuda")
    tensors = [x, *net[0].parameters()]
    for t, wants in zip(tensors, wanted, strict=True):
        t.requires_grad_(bool(wants))
    chosen = [t for t in tensors if t.requires_grad]
    counted = hits(BACKWARD)
    grad = torch.randn(9, 4).t().cuda()  # which is not contiguous
    found = torch.autograd.grad(net(x), chosen, grad)
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = torch.autograd.grad(net(x), chosen, grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_what_was_kept_may_not_change(on: Any) -> None:
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")

    def error() -> str:
        y = net(x)
        y.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace") as raised:
            y.sum().backward()
        return str(raised.value)

    counted = hits(FORWARD)
    found = error()
    assert counted.accelerated == 1
    with ptac.disabled():
        assert error() == found


def test_saved_tensors_may_be_kept_elsewhere(on: Any) -> None:
    """Through hooks nothing of ours is saved."""
    net, x = layer(6, 9, "gelu"), torch.randn(4, 6, device="cuda")
    counted = hits(FORWARD)
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        net(x).sum().backward()
    assert counted.forwarded["hooks"] == 1
    assert counted.accelerated == 0


def test_numbers_that_are_none(on: Any) -> None:
    """A gradient passes at NaN, as through stock's ReLU."""
    net, x = layer(6, 8), torch.randn(4, 6)
    x[1, 2], x[3, 3] = torch.nan, torch.inf
    counted = hits(BACKWARD)
    found = step(net, x.cuda(), torch.ones(4, 8))
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = step(net, x.cuda(), torch.ones(4, 8))
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, equal_nan=True)


def test_switching_and_copies(on: Any) -> None:
    """A graph that was made before a switch goes off is walked through after it."""
    net, x = layer(6, 8), torch.randn(4, 6, device="cuda")
    double = copy.deepcopy(net)
    losses = [n(x).square().sum() for n in (net, double)]
    ptac.disable(FUSION)
    losses[1].backward()
    ptac.enable(FUSION)
    counted = hits(BACKWARD)
    losses[0].backward()
    assert counted.accelerated == 1
    for a, b in zip(net.parameters(), double.parameters(), strict=True):
        assert a.grad is not None and b.grad is not None
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())
