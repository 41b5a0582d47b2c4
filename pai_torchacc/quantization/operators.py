"""``torch.ops.pai_torchacc.int8_*`` and ``fp8_linear``: what compiled models call.

Packed weights are those of this process: a program that is exported, saved and loaded
elsewhere needs a CPU for which weights are laid out alike. Where no kernel takes the
call, they compute by the dequantized weight. Gradients are straight
through: forward quantized, backward as if the weight were float. Importing this module
defines the operators; they stay for the life of the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.calibration import BY_NAME as OPERATORS
from pai_torchacc.quantization import quantizer

kernels: dict[str, Any] = {}
"""The extension's entries, while the switch is on."""

functions: dict[str, Any] = {}
"""By operator: a ``torch.autograd.Function`` of it, quicker than torch.library's."""

ON_CUDA = ("int8_linear", "fp8_linear")
"""Operators that have kernels there."""

_library = torch.library.Library("pai_torchacc", "FRAGMENT")


def install(c: Any) -> None:
    """Use the extension's kernels."""
    for op in OPERATORS:
        for name in (op, f"{op}_kernel") if op in _DESCRIPTIONS else (op,):
            kernels[name] = getattr(c, name)


def remove() -> None:
    """Stop using them."""
    kernels.clear()


# By the dequantized weight.


def _linear(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    weight = _dequantize(packed, scale, (n, k), 1, x.dtype)
    result = F.linear(x, weight, bias)
    return result.relu() if activation else result


def _fp8_linear(
    x: Tensor, weight_fp8: Tensor, scale: Tensor, bias: Tensor | None, _n: int, _k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    result = F.linear(x, quantizer.dequantize(weight_fp8, scale, x.dtype), bias)
    return result.relu() if activation else result


def _conv2d(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None,
    geometry: Sequence[int], activation: int = 0,
) -> Tensor:  # fmt: skip
    groups = geometry[-1]
    weight = _dequantize(packed, scale, geometry[:4], groups, x.dtype)
    result = torch.conv2d(x, weight, bias, *_steps(geometry), groups)
    order = torch._prims_common.suggest_memory_format(x)
    return (result.relu() if activation else result).contiguous(memory_format=order)


def _steps(geometry: Sequence[int]) -> tuple[Sequence[int], ...]:
    """Stride, padding and dilation."""
    return geometry[4:6], geometry[6:8], geometry[8:10]


def embedding(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor:
    """Rows of an int8 weight, as float32."""
    rows = F.embedding(indices, int8).to(torch.float32)
    return rows * F.embedding(indices, scale[:, None])


def _unpack(packed: Tensor, sizes: Sequence[int], groups: int) -> Tensor:
    if quantizer.is_packed_for_cuda(packed):
        return quantizer.unpack(packed, sizes, groups)
    return quantizer.unpack(packed.cpu(), sizes, groups).to(packed.device)


def _dequantize(
    packed: Tensor, scale: Tensor, sizes: Sequence[int], groups: int,
    dtype: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    return quantizer.dequantize(_unpack(packed, sizes, groups), scale, dtype)


# Shapes.


def _fake_linear(x: Tensor, _p: Any, _s: Any, _b: Any, n: int, *_: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _fake_conv2d(
    x: Tensor, _p: Any, _s: Any, _b: Any, geometry: Sequence[int], *_: int
) -> Tensor:
    weight = x.new_empty(geometry[:4])
    result = torch.conv2d(x, weight, None, *_steps(geometry), geometry[-1])
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


# Gradients of x; those of the weight are nobody's, and the bias's are sums.


def _linear_input(
    grad: Tensor, packed: Tensor, scale: Tensor, n: int, k: int
) -> Tensor:
    weight = torch.ops.pai_torchacc.int8_dequantize(packed, scale, [n, k], 1)
    return grad.matmul(weight.to(grad.dtype))


def _fp8_linear_input(
    grad: Tensor, weight_fp8: Tensor, scale: Tensor, _n: int, _k: int
) -> Tensor:
    return grad.matmul(quantizer.dequantize(weight_fp8, scale, grad.dtype))


def _conv2d_input(
    grad: Tensor, packed: Tensor, scale: Tensor, geometry: Sequence[int], sizes: Any
) -> Tensor:
    of, groups = geometry[:4], geometry[-1]
    weight = torch.ops.pai_torchacc.int8_dequantize(packed, scale, of, groups)
    how = (*_steps(geometry), groups)
    return torch.nn.grad.conv2d_input(tuple(sizes), weight.to(grad.dtype), grad, *how)


_INPUTS = {
    "int8_linear": _linear_input,
    "int8_conv2d": _conv2d_input,
    "fp8_linear": _fp8_linear_input,
}


def _formula(op: str) -> tuple[Any, Any]:
    """What is remembered of a call, and its backward."""
    is_linear, input_gradient = op != "int8_conv2d", _INPUTS[op]

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, packed, scale, _, *how, activation = inputs
        ctx.how = how if is_linear else (*how, x.shape)
        ctx.save_for_backward(packed, scale, *[output] * bool(activation))

    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        packed, scale, *output = ctx.saved_tensors
        if output:
            grad = grad * (output[0] > 0)
        wants = ctx.needs_input_grad
        for_x = for_bias = None
        if wants[0]:
            for_x = input_gradient(grad, packed, scale, *ctx.how)
        if wants[3]:
            rows = grad.reshape(-1, grad.shape[-1]) if is_linear else grad
            for_bias = rows.sum(0 if is_linear else (0, 2, 3))
        return for_x, None, None, for_bias, *(None,) * (len(wants) - 4)

    return remember, backward


def _function(op: str, by_kernel: Any, backward: Any) -> Any:
    """Without an activation, and with as few steps a call as there can be."""
    has_sizes = op == "int8_conv2d"

    def forward(ctx: Any, *args: Any) -> Tensor:
        ctx.how = (*args[4:], args[0].shape) if has_sizes else args[4:]
        ctx.save_for_backward(args[1], args[2])
        return by_kernel(*args)

    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("QuantizedBackward", (torch.autograd.Function,), members)


class _Operator(NamedTuple):
    schema: str
    portable: Any
    """What computes it where no kernel does."""
    fake: Any
    """Its shape."""
    has_gradients: bool = False


_PRODUCT = "Tensor x, Tensor packed, Tensor scale, Tensor? bias"
_SIZES = "int[] sizes, int groups"

_DESCRIPTIONS = {
    "int8_linear": _Operator(
        f"({_PRODUCT}, int n, int k, int activation=0)", _linear, _fake_linear, True
    ),
    "int8_conv2d": _Operator(
        f"({_PRODUCT}, int[] geometry, int activation=0)", _conv2d, _fake_conv2d, True
    ),
    "fp8_linear": _Operator(
        "(Tensor x, Tensor weight_fp8, Tensor scale, Tensor? bias, "
        "int n, int k, int activation=0)",
        _fp8_linear,
        _fake_linear,
        True,
    ),
    "int8_embedding": _Operator(
        "(Tensor indices, Tensor weight_int8, Tensor scale)",
        embedding,
        lambda indices, int8, scale: scale.new_empty((*indices.shape, int8.shape[1])),
    ),
    "int8_unpack": _Operator(
        f"(Tensor packed, {_SIZES})",
        _unpack,
        lambda packed, sizes, _: packed.new_empty(tuple(sizes), dtype=torch.int8),
    ),
    "int8_dequantize": _Operator(
        f"(Tensor packed, Tensor scale, {_SIZES})",
        _dequantize,
        lambda _, scale, sizes, groups: scale.new_empty(tuple(sizes)),
    ),
}


def _with_kernel(op: str, portable: Any) -> Any:
    """By the extension's kernel while there is one and it takes the call."""
    name = f"{op}_kernel"

    def by_kernel(*args: Any) -> Tensor:
        kernel = kernels.get(name)
        result = None if kernel is None else kernel(*args)
        return portable(*args) if result is None else result

    return by_kernel


def _define() -> None:
    for op, of in _DESCRIPTIONS.items():
        name = f"pai_torchacc::{op}"
        _library.define(f"{op}{of.schema} -> Tensor")
        by_kernel = _with_kernel(op, of.portable)
        for key in ("CPU", "CUDA") if op in ON_CUDA else ("CPU",):
            _library.impl(name, by_kernel, key)
        _library.impl(name, of.portable, "CompositeExplicitAutograd")
        torch.library.register_fake(name, of.fake, lib=_library)
        if of.has_gradients:
            remember, backward = _formula(op)
            functions[op] = _function(op, by_kernel, backward)
            torch.library.register_autograd(
                name, backward, setup_context=remember, lib=_library
            )


_define()
