"""An activation with the product or the sum beside it, as one operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion.activations import (
    ACTIVATIONS,
    activated,
    code_of,
    saves_z,
    through_activation,
)
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.shadow import checked

_TAKEN = tuple(name for name in ACTIVATIONS if name != "none")


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


def swiglu(gate: Tensor, value: Tensor) -> Tensor:
    """Compute ``silu(gate) * value``: :func:`gated_act` with SiLU.

    Parameters
    ----------
    gate, value : Tensor
        [...]; halves of one product, as of ``.chunk(2, -1)``, are not contiguous, and
        left to torch's operators.

    Returns
    -------
    Tensor
        Of gate's sizes.
    """
    return gated_act(gate, value, "silu")


def bias_act(input: Tensor, bias: Tensor, activation: str = "gelu") -> Tensor:
    """Compute ``activation(input + bias)``, of a bias that all rows have.

    Parameters
    ----------
    input : Tensor
        [..., n]
    bias : Tensor
        [n]
    activation : str
        As of :func:`gated_act`.

    Returns
    -------
    Tensor
        [..., n]

    Raises
    ------
    ValueError
        There is no such activation, or bias is no vector of the last dimension's size.
    """
    if bias.dim() != 1 or input.dim() == 0 or bias.shape[0] != input.shape[-1]:
        raise ValueError(
            f"bias of sizes {tuple(bias.shape)} to input of {tuple(input.shape)}"
        )
    return _compute("bias_act", BiasAct, input, bias, activation)


def bias_gelu(input: Tensor, bias: Tensor, approximate: str = "none") -> Tensor:
    """Compute ``gelu(input + bias)``: :func:`bias_act` with GELU.

    Parameters
    ----------
    input : Tensor
        [..., n]
    bias : Tensor
        [n]
    approximate : str
        ``none`` or ``tanh``, as of ``torch.nn.functional.gelu``.

    Returns
    -------
    Tensor
        [..., n]

    Raises
    ------
    ValueError
        There is no such approximation, or bias is no vector of the last dimension's
        size.
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"approximate={approximate!r}; there are: none, tanh")
    return bias_act(input, bias, "gelu_tanh" if approximate == "tanh" else "gelu")


def _compute(op: str, node: Any, a: Tensor, b: Tensor, activation: str) -> Tensor:
    code = code_of(activation, _TAKEN)
    if by_name.can_be_ours(op, a, b):
        args = op, (a, b), code, by_name.origin(a, b)
        made = checked(
            op, _host.load().pointwise, args, lambda: (stock(op, a, b, code),)
        )
        if made is not None:
            y: Tensor = by_name.behind_node(node, (a, b), made, op, code)[0]
            return y
    return stock(op, a, b, code)


def stock(op: str, a: Tensor, b: Tensor, code: int) -> Tensor:
    """The same by torch's operators."""
    if not 0 < code < len(ACTIVATIONS):
        raise ValueError(f"activation {code}; they are 1 to {len(ACTIVATIONS) - 1}")
    return activated(a, code) * b if op == "gated_act" else activated(a + b, code)


class _Pointwise(torch.autograd.Function):
    """What has been computed, with its gradients."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, a: Tensor, b: Tensor, made: tuple[Tensor], op: str, code: int
    ) -> tuple[Tensor]:
        """Return the result, which is made."""
        (y,) = made
        ctx.set_materialize_grads(False)
        ctx.op, ctx.code = op, code
        is_result_enough = op == "add_act" and ACTIVATIONS[code] == "relu"
        ctx.save_for_backward(*((y, None) if is_result_enough else (a, b)))
        return (y,)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        """Return the gradients of both tensors, which are the same of a sum."""
        if grad is None:
            return (None,) * 5
        found = ours_or_stocks(ctx.op, grad, ctx.saved_tensors, ctx.code)
        return *found, None, None, None


def ours_or_stocks(
    op: str, grad: Tensor, kept: tuple[Tensor, Tensor | None], code: int
) -> tuple[Tensor, Tensor]:
    """The gradients of both tensors; kept is what :func:`gradients` takes."""
    found = by_name.gradients(
        f"{op}_backward",
        _host.load().pointwise,
        (f"{op}_backward", (grad.contiguous(), *kept), code, by_name.ALONE),
        lambda: gradients(op, grad, kept, code),
    )
    return found[0], found[-1]


class GatedAct(_Pointwise):
    """Of ``activation(gate) * value``; keeps gate and value."""


class AddAct(_Pointwise):
    """Of ``activation(input + residual)``; of ReLU keeps the result alone."""


class BiasAct(_Pointwise):
    """Of ``activation(input + bias)``; keeps both."""


def gradients(
    op: str, grad: Tensor, kept: tuple[Tensor, Tensor | None], code: int
) -> tuple[Tensor, ...]:
    """By torch's operators, differentiable: of both, or of the sum.

    kept are gate and value; input and bias; or input and residual, or ReLU's result
    alone.
    """
    a, b = kept
    if op == "bias_act":
        assert b is not None
        of_sum = _through(grad, a + b, code)
        return of_sum, of_sum.sum_to_size(b.shape)
    if op == "gated_act":
        assert b is not None
        return _through(grad * b, a, code), grad * activated(a, code)
    return (_through(grad, a if b is None else a + b, code),)


def _through(grad: Tensor, z: Tensor, code: int) -> Tensor:
    """The gradient of the activation at z; of ReLU at its result, too."""
    takes_z = saves_z(code) or ACTIVATIONS[code] == "relu"
    found = through_activation(grad, z if takes_z else activated(z, code), code)
    assert found is not None
    return found
