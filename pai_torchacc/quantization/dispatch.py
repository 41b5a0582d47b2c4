"""One product: by the extension's kernels, or not at all.

Each function returns None where the caller has to use the dequantized weight: while the
switch is off, on other devices and dtypes, under transforms, and where no kernel takes
the call, which is counted with its reason. Under torch.compile, torch.export and
tracing they are operators of our own in torch's dispatcher.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc.quantization.operators import ON_CUDA, functions, kernels
from pai_torchacc.quantization.quantizer import is_compiling, is_in_graph

# Looked up once: a product of one row takes a few microseconds.
_is_autocast = torch._C._is_any_autocast_enabled

_LOWERED = (torch.float32, torch.bfloat16, torch.float16)


def product(op: str, *args: Any) -> Tensor | None:
    """Give the operator's result for its arguments, all but an activation."""
    kernel = kernels.get(op)
    if kernel is not None and args[1] is not None and not is_compiling():
        result = kernel(*args)
        if result is not None:
            return result
    return otherwise(op, *args)


def otherwise(op: str, *args: Any) -> Tensor | None:
    """In a mode, with gradients, or where no kernel takes the call."""
    x, bias = args[0], args[3]
    if args[1] is None:
        return None
    is_graph = is_in_graph()
    if not is_graph and op not in kernels:
        return None
    device = x.device.type
    if not (device in _devices(op) and x.dtype in _LOWERED):
        return None
    is_lowered = (is_graph or _is_autocast()) and torch.is_autocast_enabled(device)
    if is_lowered and device == "cuda":
        args = _lowered(args)
    if is_graph:
        result = getattr(torch.ops.pai_torchacc, op)(*args)
        return result.to(torch.get_autocast_dtype(device)) if is_lowered else result
    if is_lowered:
        # On the CPU the same numbers, in the dtype that stock's would have.
        with torch.autocast(device, enabled=False):
            x = args[0] if device == "cuda" else x.to(torch.float32)
            result = product(op, x, *args[1:])
        return None if result is None else result.to(torch.get_autocast_dtype(device))
    if is_transformed():
        return None
    if torch.is_grad_enabled() and (
        x.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return functions[op].apply(*args)
    return getattr(torch.ops.pai_torchacc, op)(*args)


def _devices(op: str) -> tuple[str, ...]:
    """Where the operator is asked. The CPU has no kernel of fp8, and counts calls."""
    return ("cpu", "cuda") if op in ON_CUDA else ("cpu",)


def _lowered(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Input and bias as autocast on CUDA gives them to a product."""
    x, packed, scale, bias, *sizes = args
    dtype = torch.get_autocast_dtype("cuda")
    return x.to(dtype), packed, scale, None if bias is None else bias.to(dtype), *sizes


def is_transformed() -> bool:
    """Whether gradients are not the ordinary ones: torch.func, forward mode."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch.autograd.forward_ad._current_level >= 0
    )
