"""Activations by name, and their gradients: what torch's operators compute of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid")
"""Names of activations; the index is the extension's code."""


def code_of(name: str, among: Sequence[str] = ACTIVATIONS) -> int:
    """The code of an activation; ValueError says which there are."""
    if name not in among:
        raise ValueError(f"activation={name!r}; there are: {', '.join(among)}")
    return ACTIVATIONS.index(name)


def activated(z: Tensor, activation: int) -> Tensor:
    """The activation of z; z itself where it is ``none``."""
    match ACTIVATIONS[activation]:
        case "none":
            return z
        case "gelu_tanh":
            return torch._C._nn.gelu(z, approximate="tanh")
        case "gelu" | "silu" as name:
            y: Tensor = getattr(torch._C._nn, name)(z)
        case name:
            y = getattr(torch, name)(z)
    return y


def saves_z(activation: int) -> bool:
    """Whether its gradient is computed from what it was applied to, and not from y."""
    return ACTIVATIONS[activation] in ("gelu", "gelu_tanh", "silu")


def through_activation(
    grad: Tensor | None, saved: Tensor | None, activation: int
) -> Tensor | None:
    """Differentiably, the gradient before the activation.

    ``saved`` is what it was applied to where :func:`saves_z` says so, else its result.
    """
    if grad is None or saved is None:
        return grad
    aten = torch.ops.aten
    match ACTIVATIONS[activation]:
        case "none":
            return grad
        case "relu":
            return aten.threshold_backward(grad, saved, 0)
        case "gelu_tanh":
            return aten.gelu_backward(grad, saved, approximate="tanh")
        case "silu" if torch.is_grad_enabled():  # which aten's has no formula for
            share = torch.sigmoid(saved)
            return grad * share * (1 + saved * (1 - share))
        case name:
            return getattr(aten, f"{name}_backward")(grad, saved)
