"""An activation with the product or the sum beside it, as one operator.

Served on CUDA, where each saves a launch and a pass over the tensors; everywhere else,
under ``torch.compile`` and in transforms they are torch's own operators, one behind the
other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion.by_name import can_be_ours, wants_gradient
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.linear import ACTIVATIONS
from pai_torchacc.fusion.node import lean_apply
from pai_torchacc.fusion.shadow import checked, run

_TORCHS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}


def gated_act(gate: Tensor, value: Tensor, activation: str = "silu") -> Tensor:
    """Compute ``activation(gate) * value``: SwiGLU, GEGLU and their like.

    Parameters
    ----------
    gate, value : Tensor
        [...]
    activation : str
        ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``tanh`` or ``sigmoid``.

    Returns
    -------
    Tensor
        Of gate's sizes. Of 16-bit tensors the activation is not rounded before it is
        multiplied.

    Raises
    ------
    ValueError
        There is no such activation.
    RuntimeError
        As torch's own, where the shapes do not fit.
    """
    return _compute("gated_act", GatedAct, gate, value, activation)


def add_act(input: Tensor, residual: Tensor, activation: str = "relu") -> Tensor:
    """Compute ``activation(input + residual)``.

    Parameters
    ----------
    input, residual : Tensor
        [...]
    activation : str
        As of :func:`gated_act`.

    Returns
    -------
    Tensor
        Of input's sizes.

    Raises
    ------
    ValueError
        There is no such activation.
    RuntimeError
        As torch's own, where the shapes do not fit.
    """
    return _compute("add_act", AddAct, input, residual, activation)


def _stock(op: str, a: Tensor, b: Tensor, activation: str) -> Tensor:
    act = _TORCHS[activation]
    return act(a) * b if op == "gated_act" else act(a + b)


def _compute(op: str, node: Any, a: Tensor, b: Tensor, activation: str) -> Tensor:
    if activation not in _TORCHS:
        raise ValueError(f"activation={activation!r}; there are: {', '.join(_TORCHS)}")
    if can_be_ours(op, a, b):
        code = ACTIVATIONS.index(activation)
        made = checked(
            op,
            _host.load().pointwise,
            (op, (a, b), code),
            lambda: (_stock(op, a, b, activation),),
        )
        if made is not None:
            y: Tensor = made[0]
            if wants_gradient(a, b):
                y = lean_apply(node)(a, b, made, activation)
            return y
    return _stock(op, a, b, activation)


class GatedAct(torch.autograd.Function):
    """What has been computed, with its gradients; keeps gate and value."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, a: Tensor, b: Tensor, made: tuple[Tensor], activation: str
    ) -> Tensor:
        """Return the result, which is made."""
        (y,) = made
        ctx.set_materialize_grads(False)
        ctx.activation = activation
        ctx.save_for_backward(a, b)
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of gate and value."""
        if grad is None:
            return (None,) * 4
        a, b = ctx.saved_tensors
        of_a, of_b = _gradients("gated_act", grad, (a, b), ctx.activation)
        return of_a, of_b, None, None


class AddAct(torch.autograd.Function):
    """What has been computed, with its gradients; of ReLU keeps the result alone."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, a: Tensor, b: Tensor, made: tuple[Tensor], activation: str
    ) -> Tensor:
        """Return the result, which is made."""
        (y,) = made
        ctx.set_materialize_grads(False)
        ctx.activation = activation
        ctx.save_for_backward(*((y, None) if activation == "relu" else (a, b)))
        return y

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of input and residual, which are the same."""
        if grad is None:
            return (None,) * 4
        (of_sum,) = _gradients("add_act", grad, ctx.saved_tensors, ctx.activation)
        return of_sum, of_sum, None, None


def _gradients(
    op: str, grad: Tensor, kept: tuple[Tensor, Tensor | None], activation: str
) -> tuple[Tensor, ...]:
    def stock() -> tuple[Tensor, ...]:
        return gradients(op, grad, kept, activation)

    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return stock()
    tensors = grad.contiguous(), *kept
    args = f"{op}_backward", tensors, ACTIVATIONS.index(activation)
    found: tuple[Tensor, ...] = run(
        f"{op}_backward", _host.load().pointwise, args, stock
    )
    return found


def gradients(
    op: str, grad: Tensor, kept: tuple[Tensor, Tensor | None], activation: str
) -> tuple[Tensor, ...]:
    """By torch's operators, differentiable: of both, or of the sum.

    kept are gate and value; or input and residual, or ReLU's result alone.
    """
    a, b = kept
    if op == "gated_act":
        assert b is not None
        return _through(grad * b, a, activation), grad * _TORCHS[activation](a)
    return (_through(grad, a if b is None else a + b, activation),)


def _through(grad: Tensor, z: Tensor, activation: str) -> Tensor:
    """The gradient of the activation at z; of ReLU at its result."""
    aten = torch.ops.aten
    if activation == "relu":
        return aten.threshold_backward(grad, z, 0)
    if activation in ("tanh", "sigmoid"):
        y = _TORCHS[activation](z)
        by = aten.tanh_backward if activation == "tanh" else aten.sigmoid_backward
        return by(grad, y)
    if activation == "silu":
        return aten.silu_backward(grad, z)
    approximate = "tanh" if activation == "gelu_tanh" else "none"
    return aten.gelu_backward(grad, z, approximate=approximate)
