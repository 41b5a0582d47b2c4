"""Descriptions of aten's operators: what they say of an operator is what torch says."""

from __future__ import annotations

import pytest
import switching
import torch

from pai_torchacc import _C

EVERY = (
    "convolution convolution_backward max_pool2d_with_indices "
    "max_pool2d_with_indices_backward avg_pool2d avg_pool2d_backward "
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _log_softmax "
    "_log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward"
)


def types(schema: torch.FunctionSchema) -> tuple[list[str], int]:
    """Types of the arguments and the number of results, which our overrides go by."""
    return [str(a.type) for a in schema.arguments], len(schema.returns)


@pytest.mark.parametrize("schema", _C.override_schemas())
def test_schemas_are_torchs(schema: str) -> None:
    ours = torch._C.parse_schema(f"aten::{schema}")
    stock = torch._C._get_schema(ours.name, "")
    assert types(ours) == types(stock)
    assert [a.name for a in ours.arguments] == [a.name for a in stock.arguments]


def test_every_operator_is_described_once() -> None:
    described = [aten for aten, _ in _C.override_names()]
    assert sorted(described) == sorted(EVERY.split())


@pytest.mark.parametrize("by_overload", [False, True])
def test_wrong_arguments_get_torchs_own_error(by_overload: bool) -> None:
    """Arguments that we take apart and box again arrive as they were given."""
    program = """
import torch, switching
x = torch.randn(1, 2, 6, 6)
pool, average = torch.ops.aten.max_pool2d_with_indices, torch.ops.aten.avg_pool2d
calls = [
    lambda: pool(x, [2, 2, 2]), lambda: pool(x, [2], [1, 1, 1, 1, 1]),
    lambda: average(x, [2, 2], [], [0], False, True, 0),
    lambda: torch._log_softmax(x, 9, False),
    lambda: torch.ops.aten._adaptive_avg_pool2d(x, [1, 2, 3]),
    lambda: torch.conv2d(x, torch.randn(3, 5, 1, 1)),
]
def said(call):
    try:
        call()
    except Exception as error:
        return str(error).splitlines()[0]
stock = [said(call) for call in calls]
assert None not in stock, stock
with switching.accelerated():
    ours = [said(call) for call in calls]
for a, b in zip(stock, ours):
    assert a == b or "own kernel failed" in b, (a, b)
"""
    hidden = "cpu_max_pool2d_with_indices,cpu_avg_pool2d,cpu_log_softmax"
    switching.python(program, PTAC_HIDE_SYMBOLS=hidden if by_overload else "")
