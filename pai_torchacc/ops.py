"""Our own operators, for programs that call them by name.

``linear_act`` and ``cross_entropy`` are in torch's dispatcher as
``torch.ops.pai_torchacc.*``, with autograd formulas and fake kernels:
``torch.compile(fullgraph=True)`` and ``torch.export`` keep them. Importing this module
defines them; they stay for the life of the process. While ``operator_fusion`` is off,
or a call does not suit any kernel row, they compute the same by torch's own operators.
So do the others everywhere but on CUDA, and when compiled.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import linear as _linear
from pai_torchacc.fusion.activations import ACTIVATIONS, code_of
from pai_torchacc.fusion.by_name.add_norm import add_norm
from pai_torchacc.fusion.by_name.dropout_add import dropout_add
from pai_torchacc.fusion.by_name.pointwise import add_act, gated_act
from pai_torchacc.fusion.by_name.relu_max_pool2d import relu_max_pool2d
from pai_torchacc.fusion.loss import operator as _loss

__all__ = [
    "ACTIVATIONS",
    "add_act",
    "add_norm",
    "cross_entropy",
    "dropout_add",
    "gated_act",
    "linear_act",
    "relu_max_pool2d",
]

REDUCTIONS = ("none", "mean", "sum")

_library = torch.library.Library("pai_torchacc", "FRAGMENT")


def linear_act(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """Compute ``activation(input @ weight.T + bias)`` as one operator.

    Parameters
    ----------
    input : Tensor
        [..., k]
    weight : Tensor
        [n, k]
    bias : Tensor, optional
        [n]
    activation : str
        ``none``, ``relu``, ``gelu``, ``gelu_tanh``, ``silu``, ``tanh`` or ``sigmoid``.

    Returns
    -------
    Tensor
        [..., n]

    Raises
    ------
    ValueError
        There is no such activation.
    RuntimeError
        As ``torch.nn.functional.linear``, where the shapes do not fit.
    """
    code = code_of(activation)
    return _result("linear_act", _stock_linear_act, input, weight, bias, code)


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute what ``torch.nn.functional.cross_entropy`` does, as one operator.

    Parameters
    ----------
    input : Tensor
        Logits, [classes], [n, classes] or [n, classes, ...]
    target : Tensor
        Class indices (int64), input's sizes without the classes; or probabilities, of
        input's sizes and dtype.
    weight : Tensor, optional
        [classes]
    ignore_index, reduction, label_smoothing
        As in torch.

    Raises
    ------
    ValueError
        There is no such reduction.
    RuntimeError, IndexError
        As torch's own.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}; there are: {', '.join(REDUCTIONS)}")
    if target.requires_grad or (weight is not None and weight.requires_grad):
        options = ignore_index, None, reduction, label_smoothing
        return F.cross_entropy(input, target, weight, None, *options)
    code = REDUCTIONS.index(reduction)
    args = input, target, weight, code, ignore_index, float(label_smoothing)
    return _result("cross_entropy", _loss.stock, *args)


def _result(name: str, stock: Any, *args: Any) -> Tensor:
    """By the extension where it takes the call, else by the operator or its parts."""
    if not torch.compiler.is_compiling():
        result = _host.ask(name, *args)
        if result is not None:
            return result
        if torch._C._are_functorch_transforms_active():
            return stock(*args)[0]
    return getattr(torch.ops.pai_torchacc, name)(*args)[0]


def _stock_linear_act(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    result = _linear.stock_forward(x, *rest)
    return result if isinstance(result, tuple) else (result, x.new_empty(0))


def _linear_act_kernel(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    result = _host.ask("linear_act_kernel", x, *rest)
    if result is None:
        return _stock_linear_act(x, *rest)
    return result if isinstance(result, tuple) else (result, x.new_empty(0))


def _linear_act_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, _, ctx.activation = inputs
    y, z = output
    saved = (None, y)[ctx.activation != 0] if z.numel() == 0 else z
    needs_x, needs_weight = ctx.needs_input_grad[:2]
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(
        x if needs_weight else None, weight if needs_x else None, saved
    )


def _linear_act_backward(ctx: Any, grad: Any, grad_z: Any) -> tuple[Any, ...]:
    if grad_z is not None and grad_z.numel() == 0:
        grad_z = None
    wants = ctx.needs_input_grad[:3]
    kept = ctx.saved_tensors
    return *_linear.gradients(grad, grad_z, kept, ctx.activation, wants, None), None


def _define(
    schema: str, kernel: Any, stock: Any, fake: Any, backward: Any, context: Any
) -> None:
    name = f"pai_torchacc::{schema.partition('(')[0]}"
    _library.define(schema)
    _library.impl(name, kernel, "CPU")
    _library.impl(name, stock, "CompositeExplicitAutograd")
    torch.library.register_fake(name, fake, lib=_library)
    torch.library.register_autograd(name, backward, setup_context=context, lib=_library)


_define(
    "linear_act(Tensor input, Tensor weight, Tensor? bias, int activation)"
    " -> (Tensor, Tensor)",
    _linear_act_kernel,
    _stock_linear_act,
    _stock_linear_act,
    _linear_act_backward,
    _linear_act_context,
)
for _key in ("AutocastCPU", "AutocastCUDA"):  # which casts what products take
    _library.impl("linear_act", _stock_linear_act, _key)
_define(
    "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int reduction=1,"
    " int ignore_index=-100, float label_smoothing=0.0, bool in_float32=False)"
    " -> (Tensor, Tensor)",
    _loss.kernel,
    _loss.stock,
    _loss.fake,
    _loss.backward,
    _loss.setup_context,
)
_library.impl("cross_entropy", _loss.kernel, "CUDA")
_library.impl("cross_entropy", _loss.under_autocast, "AutocastCUDA")
