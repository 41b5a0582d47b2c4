"""A ReLU with the max pooling behind it, as one operator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pai_torchacc import _host
from pai_torchacc.fusion import by_name
from pai_torchacc.fusion.compiled import not_compiled
from pai_torchacc.fusion.node import lean_apply, named_like
from pai_torchacc.fusion.shadow import checked

Window = tuple[int, ...]
"""Kernel, stride, padding and dilation, of height and width each; ceil_mode."""

_AXES = 2

NO_TAP = 255
"""PTAC_POOL_NO_TAP of csrc/ops/pool/relu_max/relu_max_pool2d_cuda.h."""


def relu_max_pool2d(
    input: Tensor,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int] | None = None,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Compute ``max_pool2d(relu(input), ...)``.

    Parameters
    ----------
    input : Tensor
        [n, channels, height, width] or [channels, height, width]
    kernel_size, stride, padding, dilation : int or two of them
        As of ``torch.nn.functional.max_pool2d``; without a stride it is kernel_size.
    ceil_mode : bool
        Windows may hang over the image's end.

    Returns
    -------
    Tensor
        As torch's, bit for bit.

    Raises
    ------
    RuntimeError, TypeError
        As torch's own.
    """
    stride = kernel_size if stride is None else stride
    is_ours = isinstance(input, Tensor) and input.is_cuda
    if is_ours and not torch.compiler.is_compiling():
        window = _window((kernel_size, stride, padding, dilation), ceil_mode)
        y: Tensor | None = _host.ask("relu_max_pool2d", input, window)
        if y is not None:
            return y
    return F.max_pool2d(
        F.relu(input), kernel_size, stride, padding, dilation, ceil_mode
    )


def _window(sizes: Sequence[int | Sequence[int]], ceil_mode: bool) -> Window:
    """Empty, which no row takes, where torch has to look at the numbers."""
    pairs = [(s, s) if type(s) is int else s for s in sizes]  # torch takes no bool
    if any(not isinstance(p, tuple | list) or len(p) != _AXES for p in pairs):
        return ()
    return *itertools.chain.from_iterable(pairs), ceil_mode


def _pairs(window: Window) -> list[list[int]]:
    return [list(window[i : i + 2]) for i in (0, 2, 4, 6)]


def _checked(
    x: Tensor, window: Window, wants_taps: bool
) -> tuple[Tensor | None, ...] | None:
    """What the extension makes, compared with torch's operators.

    None where these have to do the call, since taps are not among what they make.
    """

    def stock() -> tuple[Tensor | None, ...]:
        y = torch.max_pool2d(torch.relu(x), *_pairs(window), bool(window[8]))
        return (y, None) if wants_taps else (y,)

    ours = _host.load().relu_max_pool2d_parts
    found = checked("relu_max_pool2d", ours, (x, window, wants_taps), stock)
    return None if found is None or found[-1] is None else found


class ReluMaxPool2d(torch.autograd.Function):
    """What has been computed, with its gradient; keeps a byte for each output."""

    @staticmethod
    @not_compiled
    def forward(
        ctx: Any, x: Tensor, made: tuple[Tensor, Tensor], window: Window
    ) -> tuple[Tensor]:
        """Return the pooled tensor; made is that with the taps that it chose."""
        y, taps = made
        ctx.window, ctx.hw = window, x.shape[-2:]
        ctx.save_for_backward(taps)
        return (y,)

    @staticmethod
    @not_compiled
    def backward(ctx: Any, grad: Tensor) -> Any:
        """Return the gradient of x."""
        (taps,) = ctx.saved_tensors
        args = _laid_as(taps, grad), taps, ctx.window, ctx.hw
        (of_x,) = by_name.gradients(
            "relu_max_pool2d_backward",
            _host.load().relu_max_pool2d_backward,
            args,
            lambda: (gradient(*args),),
        )
        return of_x, None, None


def _laid_as(taps: Tensor, t: Tensor) -> Tensor:
    """Dense, NHWC as taps or else NCHW; by permutation, since vmap knows no formats."""
    if taps.is_contiguous():
        return t.contiguous()
    if t.stride() == taps.stride():
        return t
    return t.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def gradient(grad: Tensor, taps: Tensor, window: Window, hw: Sequence[int]) -> Tensor:
    """By torch's operators, differentiable."""
    is_chosen = taps != NO_TAP
    x = _laid_as(taps, taps.new_empty((*taps.shape[:-2], *hw), dtype=grad.dtype))
    places = torch.where(is_chosen, _places(taps, window, hw[1]), 0)
    passed = torch.where(is_chosen, grad, 0.0)
    found: Tensor = torch.ops.aten.max_pool2d_with_indices_backward(
        passed, x, *_pairs(window), bool(window[8]), places
    )
    return found


def _places(taps: Tensor, window: Window, width: int) -> Tensor:
    """Indices of torch's max pooling: positions in planes of that width."""
    kernel, stride, padding, dilation = _pairs(window)
    down, right = (
        torch.arange(taps.shape[i - 2], device=taps.device) * stride[i] - padding[i]
        for i in range(2)
    )
    row = down[:, None] + taps.long() // kernel[1] * dilation[0]
    column = right + taps.long() % kernel[1] * dilation[1]
    return row * width + column


def install(c: Any) -> None:
    """Let the extension make nodes, and check what it computes."""
    node = named_like(ReluMaxPool2d, "MaxPool2DWithIndices")
    c.lend(relu_max_pool2d_node=lean_apply(node), relu_max_pool2d_checked=_checked)
