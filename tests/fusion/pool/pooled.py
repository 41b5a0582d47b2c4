"""What tests of pooling's operators share: inputs, windows, and results of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor


def special(x: Tensor) -> Tensor:
    """Ties, both zeros, infinities and NaNs."""
    x = (x * 2).round()
    x.view(-1)[::7] = float("-inf")
    x.view(-1)[3::11] = float("nan")
    x.view(-1)[4::13] = -0.0
    return x


def tuples(n: int, low: int, high: int) -> Any:
    """Strategy: n integers of a range."""
    return st.tuples(*[st.integers(low, high)] * n)


@st.composite
def windows(draw: Any, n: int) -> dict[str, Any]:
    """Strategy: a window of n dimensions, as keywords of torch's functions."""
    kernel = draw(tuples(n, 1, 4))
    return {
        "kernel_size": kernel,
        "stride": draw(st.one_of(st.none(), tuples(n, 1, 3))),
        "padding": tuple(draw(st.integers(0, k // 2)) for k in kernel),
        "ceil_mode": draw(st.booleans()),
    }


def results(
    function: Callable[[Tensor], Any],
    given: tuple[Any, ...],
    layout: Callable[[Tensor, str], Tensor],
) -> Any:
    """Output, and gradient of a weighted sum; or the text of the error.

    An input is given as its shape, its dtype, how layout() lays it out, and whether it
    is special().
    """
    shape, dtype, how, is_special = given
    torch.manual_seed(0)
    x = torch.randn(shape)
    x = layout((special(x) if is_special else x).to(dtype), how).requires_grad_()
    try:
        out = function(x)
    except RuntimeError as error:
        return str(error)
    first = out[0] if isinstance(out, tuple) else out
    weights = layout(torch.randn(first.shape).to(dtype), how)
    (grad,) = torch.autograd.grad(first, x, weights)
    return [out if isinstance(out, tuple) else [out], grad]
