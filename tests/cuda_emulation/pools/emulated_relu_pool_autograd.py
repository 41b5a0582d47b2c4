"""pai_torchacc.ops.relu_max_pool2d on CUDA, to autograd and to what stands above it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import emulation
import pytest
import torch
from relu_pooling import WINDOWS, counted, image, in_steps, served
from switching import FUSION
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import pai_torchacc as ptac
from pai_torchacc import ops


def test_second_derivatives(on: Any) -> None:
    def curvature(pool: Callable[..., Tensor], x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        y = pool(x.exp() - 1, **WINDOWS["overlapping"])
        [first] = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        [second] = torch.autograd.grad(first.square().sum(), x)
        return second

    x = torch.randn(2, 3, 9, 11)
    counts = counted()
    found = curvature(ops.relu_max_pool2d, x.cuda())
    assert counts[0].accelerated == 1
    with ptac.disabled():
        expected = curvature(in_steps, x)
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("channels_last", [False, True])
def test_backward_after_the_switch(window: dict[str, Any], channels_last: bool) -> None:
    """By torch's own kernel then, from what ours has kept."""
    x = image(2, 4, 9, 11)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    leaf = x.cuda().requires_grad_()
    with ptac.enable(FUSION):
        y = ops.relu_max_pool2d(leaf, **window)
    y.backward(torch.ones_like(y))
    assert "aten::max_pool2d_with_indices_backward" in emulation.stock_calls()
    expected = x.clone().requires_grad_()
    in_steps(expected, **window).sum().backward()
    assert leaf.grad is not None
    assert expected.grad is not None
    assert torch.equal(leaf.grad.cpu(), expected.grad)


def test_what_is_kept(on: Any) -> None:
    """A byte for each output; neither x nor y, which may be written to."""
    x = torch.randn(2, 4, 8, 8).cuda().requires_grad_()
    before = emulation.load().emulated_blocks_ever()
    y = ops.relu_max_pool2d(x, 2)
    assert emulation.load().emulated_blocks_ever() == before + 2
    node: Any = y.grad_fn
    (taps,) = node.saved_tensors
    assert (taps.dtype, taps.shape) == (torch.uint8, y.shape)
    assert not y._is_view()
    with torch.no_grad():
        x.zero_()
    y.mul_(3)
    y.sum().backward(retain_graph=True)
    assert x.grad is not None
    assert set(x.grad.cpu().unique().tolist()) == {0.0, 3.0}
    y.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    with torch.no_grad():
        before = emulation.load().emulated_blocks_ever()
        y = ops.relu_max_pool2d(x, 2)
    assert emulation.load().emulated_blocks_ever() == before + 1


def test_gradients_of_any_layout(on: Any) -> None:
    x = image(2, 4, 8, 8)
    counts = counted()
    for grad in (torch.randn(4, 4, 4, 2).permute(3, 2, 1, 0), torch.randn(4)):
        leaf, stock = x.cuda().requires_grad_(), x.clone().requires_grad_()
        y = ops.relu_max_pool2d(leaf, 2)
        y.backward(grad.cuda().expand(y.shape))
        with ptac.disabled():
            in_steps(stock, kernel_size=2).backward(grad.expand(y.shape))
        assert leaf.grad is not None
        assert stock.grad is not None
        assert torch.equal(leaf.grad.cpu(), stock.grad)
    assert served(counts) == [2, 2]


@pytest.mark.parametrize("channels_last", [False, True])
def test_batches_of_gradients(on: Any, channels_last: bool) -> None:
    """Under vmap, which knows no memory formats, the gradient is torch's own."""
    x, grads = image(2, 4, 8, 8), torch.randn(3, 2, 4, 4, 4)
    if channels_last:
        x = x.contiguous(memory_format=torch.channels_last)
    leaf, stock = x.cuda().requires_grad_(), x.clone().requires_grad_()
    counts = counted()
    y = ops.relu_max_pool2d(leaf, 2)
    [found] = torch.autograd.grad(y, leaf, grads.cuda(), is_grads_batched=True)
    assert served(counts) == [1, 0]
    with ptac.disabled():
        y = in_steps(stock, kernel_size=2)
        one_by_one = [
            torch.autograd.grad(y, stock, g, retain_graph=True) for g in grads
        ]
    assert torch.equal(found.cpu(), torch.stack([g for [g] in one_by_one]))


def test_recomputed_where_hooks_see_what_is_saved(on: Any) -> None:
    x = torch.randn(2, 4, 8, 8).cuda().requires_grad_()
    counts = counted()
    y = checkpoint(lambda t: ops.relu_max_pool2d(t, 2), x, use_reentrant=False)
    y.sum().backward()
    assert counts[0].forwarded == {"hooks": 2}
    assert x.grad is not None


def test_transforms_and_compilers_see_torchs_operators(on: Any) -> None:
    x = torch.randn(3, 2, 4, 8, 8)
    counts = counted()

    def loss(t: Tensor) -> Tensor:
        return ops.relu_max_pool2d(t, 2).square().sum()

    found = torch.func.vmap(torch.func.grad(loss))(x.cuda())
    compiled: Callable[..., Tensor] = torch.compile(
        loss, backend="eager", fullgraph=True
    )
    compiled(x[0].cuda())
    assert served(counts) == [0, 0]
    with ptac.disabled():
        expected = torch.func.vmap(torch.func.grad(loss))(x)
    assert torch.equal(found.cpu(), expected)


def test_the_node_has_the_name_of_torchs(on: Any) -> None:
    y = ops.relu_max_pool2d(torch.randn(1, 2, 4, 4).cuda().requires_grad_(), 2)
    assert y.grad_fn is not None
    assert y.grad_fn.name() == "MaxPool2DWithIndicesBackward0"


def test_tensors_of_inference_mode(on: Any) -> None:
    counts = counted()
    with torch.inference_mode():
        x = torch.randn(1, 2, 4, 4).cuda()
        assert ops.relu_max_pool2d(x, 2).is_inference()
    assert not ops.relu_max_pool2d(x, 2).requires_grad
    assert counts[0].accelerated == 2


def test_subclasses_are_torchs(on: Any) -> None:
    class Mine(Tensor):
        """Another class may do anything."""

    x = torch.randn(1, 2, 4, 4).cuda().as_subclass(Mine)
    counts = counted()
    assert type(ops.relu_max_pool2d(x, 2)) is Mine
    assert counts[0].forwarded == {"tensor subclass": 1}
