"""The room of reduced precision: convolutions with groups, dilated and transposed."""

from __future__ import annotations

from typing import Any

import contract
import pytest
import torch
import torch.nn.functional as F
from lowering import needs_bf16, rounding
from torch import Tensor

Sizes = tuple[int, ...]

SHAPES: dict[str, tuple[Sizes, Sizes, dict[str, Any]]] = {
    "dilated": ((4, 16, 14, 14), (24, 16, 3, 3), {"padding": 2, "dilation": 2}),
    "groups": ((4, 32, 14, 14), (48, 8, 3, 3), {"padding": 1, "groups": 4}),
    "groups by 2": ((4, 48, 15, 14), (32, 24, 3, 3), {"stride": 2, "groups": 2}),
    "transposed": ((4, 24, 9, 8), (24, 16, 3, 3), {"padding": 1}),
    "transposed by 2": ((4, 24, 9, 8), (24, 16, 2, 2), {"stride": 2}),
    "transposed, more": (
        (4, 16, 9, 8),
        (16, 12, 3, 4),
        {"stride": 2, "padding": 1, "output_padding": 1},
    ),
    "transposed groups": ((4, 32, 9, 8), (32, 8, 4, 4), {"stride": 2, "groups": 2}),
}


@needs_bf16
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_contract(shape: str, with_bias: bool) -> None:
    sizes, weights, options = SHAPES[shape]
    is_transposed = shape.startswith("transposed")
    of = F.conv_transpose2d if is_transposed else F.conv2d
    n = weights[1] * options.get("groups", 1) if is_transposed else weights[0]

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        inputs = {
            "x": contract.draw(*sizes, dtype=dtype).requires_grad_(),
            "weight": contract.draw(*weights, dtype=dtype).requires_grad_(),
        }
        if with_bias:
            inputs["bias"] = contract.draw(n, dtype=dtype).requires_grad_()
        y = of(*inputs.values(), **options)
        grad = contract.draw(*y.shape, dtype=dtype).to(y.dtype)
        grads = torch.autograd.grad(y, [*inputs.values()], grad)
        return {"y": y.to(dtype), **dict(zip(inputs, grads, strict=True))}

    with rounding("conv2d", "conv2d_backward") as hits:
        contract.hold(case, bf16=True)
        served = hits["conv2d"].accelerated
        assert served >= 1
        assert hits["conv2d_backward"].accelerated == 2 * served  # data, and weight


@needs_bf16
def test_what_is_not_lowered() -> None:
    x = torch.randn(2, 8, 9, 9)
    last = x.to(memory_format=torch.channels_last)
    for call, reason in (
        (lambda: F.conv2d(last, torch.randn(8, 2, 3, 3), groups=4), "shape"),
        (lambda: F.conv2d(last, torch.randn(8, 8, 3, 3), dilation=2), "shape"),
        (lambda: F.conv_transpose2d(last, torch.randn(8, 8, 3, 3)), "layout"),
        (lambda: F.conv1d(x[0], torch.randn(8, 9, 3)), "shape"),
        (lambda: F.conv3d(x[None], torch.randn(8, 2, 3, 3, 3)), "shape"),
        (lambda: F.conv2d(x.bfloat16(), torch.randn(8, 8, 3, 3).bfloat16()), "dtype"),
    ):
        with rounding("conv2d") as hits:
            call()
            assert hits["conv2d"].forwarded == {reason: 1}
