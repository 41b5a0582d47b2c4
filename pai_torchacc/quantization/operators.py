"""``torch.ops.pai_torchacc.int8_*``: what compiled and exported models call.

Packed weights are those of this process: a program that is exported, saved and loaded
elsewhere needs a CPU for which weights are laid out alike. Off the CPU, and where no
kernel takes the call, they compute by the dequantized weight. Importing this module
defines them; they stay for the life of the process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.quantization import dispatch, quantizer

_library = torch.library.Library("pai_torchacc", "FRAGMENT")


def _linear(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    plain = _unpack(packed, [n, k], 1)
    result = F.linear(x, quantizer.dequantize(plain, scale, x.dtype), bias)
    return result.relu() if activation else result


def _linear_kernel(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    args = x, packed, scale, bias, n, k, activation
    kernel = dispatch.below("int8_linear")
    result = kernel(*args) if kernel else None
    return _linear(*args) if result is None else result


def _fake_linear(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    return x.new_empty((*x.shape[:-1], n))


def _conv2d(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, geometry: list[int],
    activation: int = 0,
) -> Tensor:  # fmt: skip
    result = dispatch.float_conv2d(x, packed, scale, bias, geometry)
    order = torch._prims_common.suggest_memory_format(x)
    return (result.relu() if activation else result).contiguous(memory_format=order)


def _conv2d_kernel(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, geometry: list[int],
    activation: int = 0,
) -> Tensor:  # fmt: skip
    kernel = dispatch.below("int8_conv2d")
    result = None
    if kernel:
        result = kernel(
            x, packed, scale, bias, tuple(geometry), None, activation, False
        )
    if result is None:
        return _conv2d(x, packed, scale, bias, geometry, activation)
    return result


def _fake_conv2d(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, geometry: list[int],
    activation: int = 0,
) -> Tensor:  # fmt: skip
    n, _, kh, kw, sh, sw, ph, pw, dh, dw, _ = geometry
    height = (x.shape[2] + 2 * ph - dh * (kh - 1) - 1) // sh + 1
    width = (x.shape[3] + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    result = x.new_empty((x.shape[0], n, height, width))
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


def _embedding(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor:
    rows = F.embedding(indices, int8).to(torch.float32)
    return rows * F.embedding(indices, scale[:, None])


def _embedding_kernel(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor:
    kernel = dispatch.below("int8_embedding")
    result = kernel(indices, int8, scale) if kernel else None
    return _embedding(indices, int8, scale) if result is None else result


def _fake_embedding(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor:
    return scale.new_empty((*indices.shape, int8.shape[1]))


def _unpack(packed: Tensor, sizes: list[int], groups: int) -> Tensor:
    return quantizer.unpack(packed.cpu(), sizes, groups).to(packed.device)


def _fake_unpack(packed: Tensor, sizes: list[int], groups: int) -> Tensor:
    return packed.new_empty(tuple(sizes), dtype=torch.int8)


def _dequantize(packed: Tensor, scale: Tensor, sizes: list[int], groups: int) -> Tensor:
    return quantizer.dequantize(_unpack(packed, sizes, groups), scale)


def _fake_dequantize(
    packed: Tensor, scale: Tensor, sizes: list[int], groups: int
) -> Tensor:
    return scale.new_empty(tuple(sizes))


def _linear_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, packed, scale, _, ctx.n, ctx.k, ctx.activation = inputs
    ctx.save_for_backward(packed, scale, output if ctx.activation else None)


def _linear_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    packed, scale, output = ctx.saved_tensors
    if output is not None:
        grad = grad * (output > 0)
    for_x = for_bias = None
    if ctx.needs_input_grad[0]:
        for_x = dispatch.linear_input_gradient(grad, packed, scale, ctx.n, ctx.k)
    if ctx.needs_input_grad[3]:
        for_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
    return for_x, None, None, for_bias, None, None, None


def _conv2d_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, packed, scale, _, ctx.geometry, ctx.activation = inputs
    ctx.sizes = x.shape
    ctx.save_for_backward(packed, scale, output if ctx.activation else None)


def _conv2d_backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    packed, scale, output = ctx.saved_tensors
    if output is not None:
        grad = grad * (output > 0)
    for_x = for_bias = None
    if ctx.needs_input_grad[0]:
        for_x = dispatch.conv2d_input_gradient(
            grad, packed, scale, ctx.sizes, ctx.geometry
        )
    if ctx.needs_input_grad[3]:
        for_bias = grad.sum((0, 2, 3))
    return for_x, None, None, for_bias, None, None


_OPERATORS = (
    (
        "int8_linear(Tensor x, Tensor packed, Tensor scale, Tensor? bias, int n, int k,"
        " int activation=0) -> Tensor",
        (_linear_kernel, _linear, _fake_linear),
        (_linear_context, _linear_backward),
    ),
    (
        "int8_conv2d(Tensor x, Tensor packed, Tensor scale, Tensor? bias,"
        " int[] geometry, int activation=0) -> Tensor",
        (_conv2d_kernel, _conv2d, _fake_conv2d),
        (_conv2d_context, _conv2d_backward),
    ),
    (
        "int8_embedding(Tensor indices, Tensor weight_int8, Tensor scale) -> Tensor",
        (_embedding_kernel, _embedding, _fake_embedding),
        None,
    ),
    (
        "int8_unpack(Tensor packed, int[] sizes, int groups) -> Tensor",
        (_unpack, _unpack, _fake_unpack),
        None,
    ),
    (
        "int8_dequantize(Tensor packed, Tensor scale, int[] sizes, int groups)"
        " -> Tensor",
        (_dequantize, _dequantize, _fake_dequantize),
        None,
    ),
)


def _define() -> None:
    for schema, (kernel, portable, fake), formula in _OPERATORS:
        name = f"pai_torchacc::{schema.partition('(')[0]}"
        _library.define(schema)
        _library.impl(name, kernel, "CPU")
        _library.impl(name, portable, "CompositeExplicitAutograd")
        torch.library.register_fake(name, fake, lib=_library)
        if formula:
            context, backward = formula
            torch.library.register_autograd(
                name, backward, setup_context=context, lib=_library
            )


def defined() -> bool:
    """Whether they are: importing this module has done it."""
    return bool(_library.ns)


_define()
