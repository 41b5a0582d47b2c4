"""One product: by the extension's int8 kernels, or not at all.

Each function returns None where the caller has to use the dequantized weight: while the
switch is off, on other devices and dtypes, under transforms, and where no kernel takes
the call, which is counted with its reason. Under torch.compile, torch.export and
tracing they are operators of our own in torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.quantization import quantizer

_kernels: dict[str, Any] = {}
"""The extension's entries, while the switch is on."""

OPERATORS = ("int8_linear", "int8_conv2d", "int8_embedding")

# Looked up once: a product of one row takes a few microseconds.
_is_compiling = torch.compiler.is_compiling
_is_in_graph = quantizer.is_in_graph
_is_grad_enabled = torch.is_grad_enabled
_is_autocast = torch._C._is_any_autocast_enabled


kernel_of = _kernels.get
"""The entry of that name; None while the switch is off."""


def install(c: Any) -> None:
    """Use the extension's kernels."""
    for op in OPERATORS:
        for name in (op, f"{op}_kernel"):
            if hasattr(c, name):
                _kernels[name] = getattr(c, name)


def remove() -> None:
    """Stop using them."""
    _kernels.clear()


def below(op: str) -> Any:
    """The entry for the dispatcher, below modes; None while the switch is off."""
    return _kernels.get(f"{op}_kernel")


def linear(
    x: Tensor,
    packed: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
    activation: int = 0,
) -> Tensor | None:
    """``act(x @ w.T + bias)`` with a packed weight [n, k]."""
    kernel = _kernels.get("int8_linear")
    if kernel is not None and packed is not None and not _is_compiling():
        result = kernel(x, packed, scale, bias, n, k, activation)
        if result is not None:
            return result
    return linear_otherwise(x, packed, scale, bias, n, k, activation)


def linear_otherwise(
    x: Tensor,
    packed: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    n: int,
    k: int,
    activation: int = 0,
) -> Tensor | None:
    """In a mode, with gradients, or where no kernel takes the call."""
    if packed is None:
        return None
    if _is_in_graph():
        if not _is_cpu(x):
            return None
        op = torch.ops.pai_torchacc.int8_linear
        return _cast(op(x, packed, scale, bias, n, k, activation), x)
    if "int8_linear" not in _kernels:
        return None
    if _is_autocast() and torch.is_autocast_enabled("cpu"):
        return _lowered(linear, x, packed, scale, bias, n, k, activation)
    if is_transformed() or not _is_cpu(x):
        return None
    if _is_grad_enabled() and _wants_gradient(x, bias):
        return _Linear.apply(x, bias, packed, scale, n, k)
    op = torch.ops.pai_torchacc.int8_linear
    return op(x, packed, scale, bias, n, k, activation)


def conv2d(
    x: Tensor,
    packed: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    geometry: tuple[int, ...],
    activation: int = 0,
) -> Tensor | None:
    """``act(conv2d(x, w) + bias)`` of images [b, c, h, w]."""
    kernel = _kernels.get("int8_conv2d")
    if kernel is not None and packed is not None and not _is_compiling():
        result = kernel(x, packed, scale, bias, geometry, None, activation, False)
        if result is not None:
            return result
    return _conv2d_otherwise(x, packed, scale, bias, geometry, activation)


def _conv2d_otherwise(
    x: Tensor,
    packed: Tensor | None,
    scale: Tensor,
    bias: Tensor | None,
    geometry: tuple[int, ...],
    activation: int,
) -> Tensor | None:
    """As for linear layers."""
    if packed is None:
        return None
    if _is_in_graph():
        if not _is_cpu(x):
            return None
        op = torch.ops.pai_torchacc.int8_conv2d
        return _cast(op(x, packed, scale, bias, list(geometry), activation), x)
    if "int8_conv2d" not in _kernels:
        return None
    if _is_autocast() and torch.is_autocast_enabled("cpu"):
        return _lowered(conv2d, x, packed, scale, bias, geometry, activation)
    if is_transformed() or not _is_cpu(x):
        return None
    if _is_grad_enabled() and _wants_gradient(x, bias):
        return _Conv2d.apply(x, bias, packed, scale, geometry)
    op = torch.ops.pai_torchacc.int8_conv2d
    return op(x, packed, scale, bias, list(geometry), activation)


def embedding(indices: Tensor, int8: Tensor, scale: Tensor) -> Tensor | None:
    """Rows of an int8 weight [v, d], as float32."""
    if _is_in_graph():
        if not _are_indices(indices):
            return None
        return torch.ops.pai_torchacc.int8_embedding(indices, int8, scale)
    kernel = _kernels.get("int8_embedding")
    if kernel is None:
        return None
    result = kernel(indices, int8, scale)
    if result is None and _are_indices(indices):
        return torch.ops.pai_torchacc.int8_embedding(indices, int8, scale)
    return result


_LOWERED = (torch.float32, torch.bfloat16, torch.float16)


def is_detour_worth_it() -> bool:
    """Whether pooling goes by way of channels last, having no kernels of ours."""
    from pai_torchacc import _switch

    return bool(_kernels) and not _switch.is_active("operator_fusion")


def _is_cpu(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in _LOWERED


def _are_indices(x: Tensor) -> bool:
    return x.device.type == "cpu" and x.dtype in (torch.int64, torch.int32)


def _wants_gradient(x: Tensor, bias: Tensor | None) -> bool:
    return x.requires_grad or (bias is not None and bias.requires_grad)


def is_transformed() -> bool:
    """Whether gradients are not the ordinary ones: torch.func, forward mode."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )


def _lowered(
    function: Any, x: Tensor, packed: Tensor, scale: Tensor, *rest: Any
) -> Any:
    """Under autocast: the same numbers, in the dtype that stock's would have."""
    if x.dtype not in _LOWERED or not _is_cpu(x):
        return None
    with torch.autocast("cpu", enabled=False):
        result = function(x.to(torch.float32), packed, scale, *rest)
    return None if result is None else result.to(torch.get_autocast_dtype("cpu"))


def _cast(result: Tensor, x: Tensor) -> Tensor:
    if torch.is_autocast_enabled("cpu"):
        return result.to(torch.get_autocast_dtype("cpu"))
    return result


def linear_input_gradient(
    grad: Tensor, packed: Tensor, scale: Tensor, n: int, k: int
) -> Tensor:
    """Gradient of a linear layer's input, by the dequantized weight."""
    weight = torch.ops.pai_torchacc.int8_dequantize(packed, scale, [n, k], 1)
    return grad.matmul(weight.to(grad.dtype))


def conv2d_input_gradient(
    grad: Tensor,
    packed: Tensor,
    scale: Tensor,
    sizes: Sequence[int],
    geometry: Sequence[int],
) -> Tensor:
    """Gradient of a convolution's images, by the dequantized weight."""
    n, c, kh, kw, *rest, groups = geometry
    stride, padding, dilation = rest[:2], rest[2:4], rest[4:]
    weight = torch.ops.pai_torchacc.int8_dequantize(
        packed, scale, [n, c, kh, kw], groups
    )
    weight = weight.to(grad.dtype)
    return torch.nn.grad.conv2d_input(
        tuple(sizes), weight, grad, stride, padding, dilation, groups
    )


class _Linear(torch.autograd.Function):
    """Straight through: forward in int8, gradients as if the weight were float."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, packed: Tensor, scale: Tensor,
        n: int, k: int,
    ) -> Tensor:  # fmt: skip
        """Compute y."""
        ctx.save_for_backward(packed, scale)
        ctx.sizes = n, k
        result = _kernels["int8_linear_kernel"](x, packed, scale, bias, n, k, 0)
        if result is None:
            weight = quantizer.dequantize(
                quantizer.unpack(packed, (n, k)), scale, x.dtype
            )
            return torch._C._nn.linear(x, weight, bias)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of x and bias."""
        wants_x, wants_bias = ctx.needs_input_grad[:2]
        for_x = for_bias = None
        if wants_x:
            for_x = linear_input_gradient(grad, *ctx.saved_tensors, *ctx.sizes)
        if wants_bias:
            for_bias = grad.reshape(-1, grad.shape[-1]).sum(0)
        return for_x, for_bias, None, None, None, None


class _Conv2d(torch.autograd.Function):
    """The same for convolutions."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, bias: Tensor | None, packed: Tensor, scale: Tensor,
        geometry: tuple[int, ...],
    ) -> Tensor:  # fmt: skip
        """Compute y."""
        ctx.save_for_backward(packed, scale)
        ctx.geometry, ctx.sizes = geometry, x.shape
        result = _kernels["int8_conv2d_kernel"](
            x, packed, scale, bias, geometry, None, 0, False
        )
        if result is None:
            return float_conv2d(x, packed, scale, bias, geometry)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradients of x and bias."""
        wants_x, wants_bias = ctx.needs_input_grad[:2]
        for_x = for_bias = None
        if wants_x:
            packed, scale = ctx.saved_tensors
            for_x = conv2d_input_gradient(grad, packed, scale, ctx.sizes, ctx.geometry)
        if wants_bias:
            for_bias = grad.sum((0, 2, 3))
        return for_x, for_bias, None, None, None


def float_conv2d(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    geometry: Sequence[int],
) -> Tensor:
    """Convolve with the dequantized weight."""
    n, c, kh, kw, *rest, groups = geometry
    stride, padding, dilation = rest[:2], rest[2:4], rest[4:]
    plain = quantizer.unpack(packed, (n, c, kh, kw), groups)
    weight = quantizer.dequantize(plain, scale, x.dtype)
    return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
