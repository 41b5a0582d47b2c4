"""Gradients of activations by torch's operators, which may be differentiated again."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pai_torchacc.fusion.activations import (
    ACTIVATIONS,
    activated,
    code_of,
    saves_z,
    through_activation,
)
from pai_torchacc.fusion.by_name import pointwise


def kept(z: Tensor, code: int) -> Tensor:
    return z if saves_z(code) else activated(z, code)


@pytest.mark.parametrize("code", range(len(ACTIVATIONS)), ids=ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_are_autograds(code: int, dtype: torch.dtype) -> None:
    """Bit for bit: outside of a second derivative the operators are the same."""
    z, grad = (torch.randn(5, 7).to(dtype) for _ in range(2))
    leaf = z.clone().requires_grad_()
    activated(leaf, code).backward(grad)
    with torch.no_grad():
        found = through_activation(grad, kept(z, code), code)
    assert found is not None
    assert leaf.grad is not None
    assert torch.equal(found, leaf.grad)


@pytest.mark.parametrize("code", range(len(ACTIVATIONS)), ids=ACTIVATIONS)
def test_gradients_can_be_differentiated(code: int) -> None:
    """On a device whose kernels of gradients have no gradient, as SiLU's on the CPU."""
    z, grad = (torch.randn(3, 4, dtype=torch.float64) for _ in range(2))
    inputs = grad.requires_grad_(), z.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda g, x: through_activation(g, kept(x, code), code), inputs
    )


@pytest.mark.parametrize("code", range(1, len(ACTIVATIONS)), ids=ACTIVATIONS[1:])
@pytest.mark.parametrize("op", ["gated_act", "add_act"])
def test_gradients_of_pointwise_operators_can_be(op: str, code: int) -> None:
    tensors = [torch.randn(3, 4, dtype=torch.float64) for _ in range(3)]
    inputs = tuple(t.requires_grad_() for t in tensors)
    assert torch.autograd.gradcheck(
        lambda grad, a, b: pointwise.gradients(op, grad, (a, b), code), inputs
    )


def test_names_that_are_none() -> None:
    with pytest.raises(ValueError, match="activation='swish'; there are: none, relu"):
        code_of("swish")
