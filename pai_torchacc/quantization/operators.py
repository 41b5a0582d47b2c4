"""``torch.ops.pai_torchacc.int8_*``: what compiled and exported models call.

Packed weights are those of this process: a program that is exported, saved and loaded
elsewhere needs a CPU for which weights are laid out alike. Off the CPU, and where no
kernel takes the call, they compute by the dequantized weight. Gradients are straight
through: forward in int8, backward as if the weight were float. Importing this module
defines the operators; they stay for the life of the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.quantization import quantizer

OPERATORS = ("int8_linear", "int8_conv2d", "int8_embedding")

kernels: dict[str, Any] = {}
"""The extension's entries, while the switch is on."""

functions: dict[str, Any] = {}
"""By operator: a ``torch.autograd.Function`` of it, quicker than torch.library's."""

_library = torch.library.Library("pai_torchacc", "FRAGMENT")


def install(c: Any) -> None:
    """Use the extension's kernels."""
    for op in OPERATORS:
        for name in (op, f"{op}_kernel"):
            kernels[name] = getattr(c, name)


def remove() -> None:
    """Stop using them."""
    kernels.clear()


# By the dequantized weight.


def _linear(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None, n: int, k: int,
    activation: int = 0,
) -> Tensor:  # fmt: skip
    weight = quantizer.dequantize(_unpack(packed, [n, k], 1), scale, x.dtype)
    result = F.linear(x, weight, bias)
    return result.relu() if activation else result


def _conv2d(
    x: Tensor, packed: Tensor, scale: Tensor, bias: Tensor | None,
    geometry: Sequence[int], activation: int = 0,
) -> Tensor:  # fmt: skip
    sizes, groups = geometry[:4], geometry[-1]
    weight = quantizer.dequantize(_unpack(packed, sizes, groups), scale, x.dtype)
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
    return quantizer.unpack(packed.cpu(), sizes, groups).to(packed.device)


def _dequantize(
    packed: Tensor, scale: Tensor, sizes: Sequence[int], groups: int
) -> Tensor:
    return quantizer.dequantize(_unpack(packed, sizes, groups), scale)


# Shapes.


def _fake_linear(x: Tensor, _p: Any, _s: Any, _b: Any, n: int, *_: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], n))


def _fake_conv2d(
    x: Tensor, _p: Any, _s: Any, _b: Any, geometry: Sequence[int], *_: int
) -> Tensor:
    kernel = geometry[2:4]
    settings = zip(x.shape[2:], kernel, *_steps(geometry), strict=True)
    sizes = [(w + 2 * p - d * (k - 1) - 1) // s + 1 for w, k, s, p, d in settings]
    result = x.new_empty((x.shape[0], geometry[0], *sizes))
    return result.contiguous(memory_format=torch._prims_common.suggest_memory_format(x))


def _fake_embedding(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor:
    return scale.new_empty((*indices.shape, int8.shape[1]))


def _fake_unpack(packed: Tensor, sizes: Sequence[int], groups: int) -> Tensor:
    return packed.new_empty(tuple(sizes), dtype=torch.int8)


def _fake_dequantize(
    packed: Tensor, scale: Tensor, sizes: Sequence[int], groups: int
) -> Tensor:
    return scale.new_empty(tuple(sizes))


# Gradients.


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, packed, scale, _, *ctx.how, activation = inputs
    ctx.sizes = x.shape
    ctx.save_for_backward(packed, scale, output if activation else None)


def _linear_gradients(
    grad: Tensor, packed: Tensor, scale: Tensor, sizes: Any, n: int, k: int
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """How the gradients of x and bias are computed."""

    def of_x() -> Tensor:
        weight = torch.ops.pai_torchacc.int8_dequantize(packed, scale, [n, k], 1)
        return grad.matmul(weight.to(grad.dtype))

    return of_x, lambda: grad.reshape(-1, grad.shape[-1]).sum(0)


def _conv2d_gradients(
    grad: Tensor, packed: Tensor, scale: Tensor, sizes: Any, geometry: Sequence[int]
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    def of_x() -> Tensor:
        weight = torch.ops.pai_torchacc.int8_dequantize(
            packed, scale, geometry[:4], geometry[-1]
        ).to(grad.dtype)
        return torch.nn.grad.conv2d_input(
            tuple(sizes), weight, grad, *_steps(geometry), geometry[-1]
        )

    return of_x, lambda: grad.sum((0, 2, 3))


def _backward_by(gradients: Any) -> Callable[..., tuple[Any, ...]]:
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        packed, scale, output = ctx.saved_tensors
        if output is not None:
            grad = grad * (output > 0)
        of_x, of_bias = gradients(grad, packed, scale, ctx.sizes, *ctx.how)
        for_x = of_x() if ctx.needs_input_grad[0] else None
        for_bias = of_bias() if ctx.needs_input_grad[3] else None
        return for_x, None, None, for_bias, *(None,) * (len(ctx.how) + 1)

    return backward


def _function(kernel: Any, formula: Any) -> Any:
    def forward(ctx: Any, *args: Any) -> Tensor:
        result = kernel(*args)
        _remember(ctx, args, result)
        return result

    members = {"forward": staticmethod(forward), "backward": staticmethod(formula)}
    return type("Int8Backward", (torch.autograd.Function,), members)


_PRODUCT = "Tensor x, Tensor packed, Tensor scale, Tensor? bias"

_DESCRIPTIONS = (
    (
        f"int8_linear({_PRODUCT}, int n, int k, int activation=0) -> Tensor",
        (_linear, _fake_linear, _linear_gradients),
    ),
    (
        f"int8_conv2d({_PRODUCT}, int[] geometry, int activation=0) -> Tensor",
        (_conv2d, _fake_conv2d, _conv2d_gradients),
    ),
    (
        "int8_embedding(Tensor indices, Tensor weight_int8, Tensor scale) -> Tensor",
        (embedding, _fake_embedding, None),
    ),
    (
        "int8_unpack(Tensor packed, int[] sizes, int groups) -> Tensor",
        (_unpack, _fake_unpack, None),
    ),
    (
        "int8_dequantize(Tensor packed, Tensor scale, int[] sizes, int groups)"
        " -> Tensor",
        (_dequantize, _fake_dequantize, None),
    ),
)
"""Schema; what computes it where no kernel does, its shape, its gradients."""


def _with_kernel(op: str, portable: Any) -> Any:
    """By the extension's kernel while there is one and it takes the call."""
    name = f"{op}_kernel"

    def on_cpu(*args: Any) -> Tensor:
        kernel = kernels.get(name)
        result = None if kernel is None else kernel(*args)
        return portable(*args) if result is None else result

    return on_cpu


def _define() -> None:
    for schema, (portable, fake, gradients) in _DESCRIPTIONS:
        op = schema.partition("(")[0]
        name = f"pai_torchacc::{op}"
        on_cpu = _with_kernel(op, portable)
        _library.define(schema)
        _library.impl(name, on_cpu, "CPU")
        _library.impl(name, portable, "CompositeExplicitAutograd")
        torch.library.register_fake(name, fake, lib=_library)
        if gradients:
            formula = _backward_by(gradients)
            functions[op] = _function(on_cpu, formula)
            torch.library.register_autograd(
                name, formula, setup_context=_remember, lib=_library
            )


_define()
