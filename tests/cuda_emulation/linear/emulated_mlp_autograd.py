"""Gradients of blocks of two layers on CUDA, as autograd asks for them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import linear_layers
import pytest
import torch
from linear_layers import ACTIVATIONS, block, step
from linear_layers import MLP as FORWARD
from linear_layers import MLP_BACKWARD as BACKWARD
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size


def drawn(m: int = 4, k: int = 6) -> Tensor:
    return torch.randn(m, k, device="cuda")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_double_backward(on: Any, activation: str, leading: tuple[int, ...]) -> None:
    """By torch's own operators, from what the node has kept."""

    def second(net: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.detach().requires_grad_()
        inputs = [x, *net.parameters()]
        first = torch.autograd.grad(net(x).square().sum(), inputs, create_graph=True)
        total = sum((t.square().sum() for t in first), x.new_zeros(()))
        return [t.cpu() for t in torch.autograd.grad(total, inputs)]

    net, x = block(6, 9, 5, activation), torch.randn(*leading, 6, device="cuda")
    counted, back = hits(FORWARD), hits(BACKWARD)
    found = second(net, x)
    assert counted.accelerated == 1
    assert back.forwarded.keys() == {"gradient not supported"}
    with ptac.disabled():
        expected = second(net, x)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activation", ["relu", "gelu tanh", "sigmoid"])
@pytest.mark.parametrize("wanted", range(1, 32))
def test_gradients_of_some(on: Any, activation: str, wanted: int) -> None:
    net, x = block(6, 16, 5, activation), drawn()
    tensors = [x, *net.parameters()]
    for i, t in enumerate(tensors):
        t.requires_grad_(bool(wanted >> i & 1))
    chosen = [t for t in tensors if t.requires_grad]
    forward, backward = hits(FORWARD), hits(BACKWARD)
    grad = torch.randn(5, 4).t().cuda()  # which is not contiguous
    found = torch.autograd.grad(net(x), chosen, grad)
    is_ours = wanted >> 3 != 2  # no product sums for the last bias alone
    assert (forward.accelerated, backward.accelerated) == (is_ours, is_ours)
    assert is_ours or forward.forwarded == {"gradient not supported": 1}
    with ptac.disabled():
        expected = torch.autograd.grad(net(x), chosen, grad)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), b.cpu())


def test_without_gradients_it_is_left_to_layers(on: Any) -> None:
    """Which are as many launches then."""
    net, layers, blocks = block(6, 16, 5), hits("linear_act"), hits(FORWARD)
    with torch.no_grad():
        net(drawn())
    net.requires_grad_(False)(drawn())
    assert (layers.accelerated, blocks.forwarded) == (2, {})


CHANGES: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "the input": lambda _, x, __: x.mul_(2),
    "the first weight": lambda net, *_: net[0].weight.mul_(2),
    "the second weight": lambda net, *_: net[2].weight.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_kept_may_not_change(on: Any, change: str) -> None:
    def error() -> str:
        torch.manual_seed(0)
        net, x = block(6, 16, 5), drawn().requires_grad_()
        within = x * 1
        y = net(within)
        with torch.no_grad():
            CHANGES[change](net, within, y)
        with pytest.raises(RuntimeError, match="modified by an inplace") as raised:
            y.sum().backward()
        return str(raised.value)

    counted = hits(FORWARD)
    found = error()
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = error()
    assert found.split("FloatTensor")[0] == expected.split("FloatTensor")[0]
    assert found.split("is at version")[1] == expected.split("is at version")[1]


def test_what_was_not_kept_may_change(on: Any) -> None:
    """As with stock: y, the biases, and weights that no gradient needs."""
    net, x = block(6, 16, 5), drawn()
    counted = hits(BACKWARD)
    for last in (False, True):
        y = net(x)
        with torch.no_grad():
            for p in (net[0].weight, net[0].bias, net[2].bias):  # x wants no gradient
                p.mul_(2)
        if last:
            y.mul_(2)
        y.sum().backward()
    assert counted.accelerated == 2


def test_data_that_is_set_is_not_read(on: Any) -> None:
    """The gradient is of the weights that were multiplied by."""

    def found() -> tuple[Tensor, ...]:
        torch.manual_seed(0)
        net, x = block(6, 16, 5), drawn().requires_grad_()
        y = net(x)
        for layer in (net[0], net[2]):
            layer.weight.data = torch.zeros_like(layer.weight)
        return tuple(t.cpu() for t in torch.autograd.grad(y.sum(), [x, net[0].bias]))

    counted = hits(BACKWARD)
    ours = found()
    assert counted.accelerated == 1
    with ptac.disabled():
        torch.testing.assert_close(ours, found())


def test_a_graph_is_walked_twice_where_it_is_kept(on: Any) -> None:
    net, x = block(6, 16, 5), drawn()
    y = net(x).sum()
    counted = hits(BACKWARD)
    first = torch.autograd.grad(y, [*net.parameters()], retain_graph=True)
    second = torch.autograd.grad(y, [*net.parameters()])
    assert counted.accelerated == 2
    for a, b in zip(first, second, strict=True):
        assert torch.equal(a.cpu(), b.cpu())
    with pytest.raises(RuntimeError, match="backward through the graph a second"):
        y.backward()


def test_saved_tensors_may_be_kept_elsewhere(on: Any) -> None:
    """Through hooks nothing of ours is saved."""
    net, x = block(6, 16, 5, "gelu"), drawn()
    counted = hits(FORWARD)
    hooks = torch.autograd.graph.saved_tensors_hooks
    with hooks(lambda t: t.cpu(), lambda t: t.cuda()):
        net(x).sum().backward()
    assert counted.forwarded == {"hooks": 1}


@pytest.mark.parametrize("activation", ["relu", "gelu tanh", "silu"])
def test_numbers_that_are_none(on: Any, activation: str) -> None:
    """A gradient passes at NaN, as through stock's activations."""
    net, x, grad = block(6, 16, 5, activation), torch.randn(4, 6), torch.randn(4, 5)
    x[1, 2], x[3, 3] = torch.nan, torch.inf
    with torch.no_grad():
        net[0].bias[7] = torch.nan
    counted = hits(BACKWARD)
    found = step(net, x.cuda(), grad)
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = step(net, x.cuda(), grad)
    for name, t in expected.items():
        torch.testing.assert_close(found[name], t, equal_nan=True)


def test_a_gradient_is_held_at_zero(on: Any) -> None:
    """Rows of zeros without a bias, as padding gives, have none by stock's ReLU."""
    net = block(6, 16, 5, bias=False)
    x = torch.randn(4, 6)
    x[1] = 0
    counted = hits(BACKWARD)
    found = step(net, x.cuda(), torch.randn(4, 5))
    assert counted.accelerated == 1
    assert (found["x"][1] == 0).all()


def test_switching_and_copies(on: Any) -> None:
    """A graph that was made before a switch goes off is walked through after it."""
    net, x = block(6, 16, 5), drawn()
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


def test_checkpoints(on: Any) -> None:
    """A block that is computed again in backward."""
    net, x = block(6, 16, 5), drawn().requires_grad_()
    counted = hits(FORWARD)
    y = torch.utils.checkpoint.checkpoint(net, x, use_reentrant=True)
    y.sum().backward()
    assert counted.accelerated == 1
    found = [p.grad.cpu() for p in net.parameters() if p.grad is not None]
    net.zero_grad()
    with ptac.disabled():
        net(x).sum().backward()
    expected = [p.grad.cpu() for p in net.parameters() if p.grad is not None]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("leading", [(4,), (2, 3)])
def test_batches_of_gradients(
    on: Any, activation: str, leading: tuple[int, ...]
) -> None:
    """Under vmap, by torch's own operators."""
    net, x = block(6, 16, 5, activation), torch.randn(*leading, 6, device="cuda")
    wanted = [x.requires_grad_(), *net.parameters()]
    grads, counted = torch.randn(3, *leading, 5, device="cuda"), hits(FORWARD)

    def batches() -> list[Tensor]:
        found = torch.autograd.grad(net(x), wanted, grads, is_grads_batched=True)
        return [g.cpu() for g in found]

    found = batches()
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = batches()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
