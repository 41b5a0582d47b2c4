"""Products and convolutions with an activation behind them, as one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion import linear as _linear
from pai_torchacc.fusion.activations import (
    ACTIVATIONS,
    activated,
    code_of,
    saves_z,
    through_activation,
)
from pai_torchacc.ops.dispatcher import define, first_result

_CONVOLUTIONS: dict[int, Callable[..., Tensor]] = {
    3: F.conv1d,
    4: F.conv2d,
    5: F.conv3d,
}
"""By the weight's dimensions."""

_RELU = ACTIVATIONS.index("relu")

IntOrPair = int | Sequence[int]


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
    return first_result("linear_act", _stock_linear_act, input, weight, bias, code)


def conv_act(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: IntOrPair = 1,
    padding: IntOrPair | str = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    activation: str = "relu",
) -> Tensor:
    """Compute ``activation(conv(input, weight, bias, ...))`` of 1, 2 or 3 dimensions.

    Without a gradient a ReLU behind a convolution of images is computed with it.

    Parameters
    ----------
    input : Tensor
        [n, channels, ...], or one without n.
    weight : Tensor
        [out_channels, channels / groups, ...]; its dimensions say which convolution.
    bias : Tensor, optional
        [out_channels]
    stride, padding, dilation, groups
        As of ``torch.nn.functional.conv2d``.
    activation : str
        As of :func:`linear_act`.

    Returns
    -------
    Tensor
        As the convolution's.

    Raises
    ------
    ValueError
        There is no such activation, or the weight has not 3 to 5 dimensions.
    RuntimeError
        As torch's own, where the shapes do not fit.
    """
    code = code_of(activation)
    if weight.dim() not in _CONVOLUTIONS:
        raise ValueError("the weight of a convolution has 3 to 5 dimensions")
    n_axes = weight.dim() - 2
    pairs = [_per_axis(v, n_axes) for v in (stride, padding, dilation)]
    is_batch = input.dim() == weight.dim()
    if torch.compiler.is_compiling() and is_batch and None not in pairs:
        args = input, weight, bias, *pairs, groups, code
        kept: Tensor = torch.ops.pai_torchacc.conv_act(*args)[0]
        return kept
    is_ours = code == _RELU and is_batch and not torch.compiler.is_compiling()
    if is_ours and not by_name.wants_gradient(input, weight, bias):
        args = input, weight, bias, *pairs, groups, by_name.ALONE
        y: Tensor | None = _host.ask("conv_relu", *args)
        if y is not None:
            return y
    conv = _CONVOLUTIONS[weight.dim()]
    z = conv(input, weight, bias, stride, padding, dilation, groups)  # type: ignore[arg-type]
    return activated(z, code)


def _per_axis(value: Any, n_axes: int) -> tuple[int, ...] | None:
    """None of what torch has to look at: a padding's name, or other numbers."""
    if isinstance(value, int):
        return (value,) * n_axes
    if not isinstance(value, tuple | list) or len(value) not in (1, n_axes):
        return None
    return tuple(value) * (n_axes // len(value))


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


def _stock_conv_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: int,
) -> tuple[Tensor, Tensor]:
    """The result, and what its gradient needs if that is not the result."""
    conv = _CONVOLUTIONS[weight.dim()]
    z = conv(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[arg-type]
    return activated(z, activation), z if saves_z(activation) else x.new_empty(0)


def _conv_act_kernel(x: Tensor, w: Tensor, b: Any, *rest: Any) -> tuple[Tensor, Tensor]:
    *sizes, groups, activation = rest
    if activation == _RELU and w.dim() == len(sizes) + 1:  # of images
        y = _host.ask("conv_relu", x, w, b, *map(tuple, sizes), groups, by_name.KERNEL)
        if y is not None:
            return y, x.new_empty(0)
    return _stock_conv_act(x, w, b, *rest)


def _conv_act_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, *ctx.options, ctx.activation = inputs
    y, z = output
    ctx.bias_sizes = None if bias is None else list(bias.shape)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, z if saves_z(ctx.activation) else y)


def _conv_act_backward(ctx: Any, grad: Any, grad_z: Any) -> tuple[Any, ...]:
    x, weight, saved = ctx.saved_tensors
    of_z = through_activation(grad, saved, ctx.activation)
    if grad_z is not None and saves_z(ctx.activation):
        of_z = grad_z if of_z is None else of_z + grad_z
    found: tuple[Tensor | None, ...] = (None, None, None)
    is_one = x.dim() < weight.dim()  # without a batch
    if of_z is not None:
        if is_one:
            of_z, x = of_z.unsqueeze(0), x.unsqueeze(0)
        wants = list(ctx.needs_input_grad[:3])
        stride, padding, dilation, groups = ctx.options
        no_padding = [0] * len(stride)
        options = stride, padding, dilation, False, no_padding, groups
        args = of_z, x, weight, ctx.bias_sizes, *options, wants
        found = torch.ops.aten.convolution_backward(*args)
        if is_one and found[0] is not None:
            found = found[0].squeeze(0), *found[1:]
    return *found, *(None,) * 5


define(
    "linear_act(Tensor input, Tensor weight, Tensor? bias, int activation)"
    " -> (Tensor, Tensor)",
    _stock_linear_act,
    {"CPU": _linear_act_kernel},
    _linear_act_backward,
    _linear_act_context,
)
define(
    "conv_act(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride,"
    " SymInt[] padding, SymInt[] dilation, SymInt groups, int activation)"
    " -> (Tensor, Tensor)",
    _stock_conv_act,
    {"CPU": _conv_act_kernel},
    _conv_act_backward,
    _conv_act_context,
)
