"""Descriptions of aten's operators: what they say of an operator is what torch says."""

from __future__ import annotations

import internals
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


@pytest.mark.parametrize("schema", internals.override_schemas())
def test_schemas_are_torchs(schema: str) -> None:
    ours = torch._C.parse_schema(f"aten::{schema}")
    stock = torch._C._get_schema(ours.name, "")
    assert types(ours) == types(stock)
    assert [a.name for a in ours.arguments] == [a.name for a in stock.arguments]


def test_every_operator_is_described_once() -> None:
    described = [aten for aten, _ in _C.override_names()]
    assert sorted(described) == sorted(EVERY.split())


BOXED = "c10_find_operator"
"""Without it we cannot find where torch keeps the address of a C++ kernel."""


@pytest.mark.parametrize("hidden", ["", BOXED])
def test_torch_calls_without_boxing(hidden: str) -> None:
    """All operators on x86-64; both ways read the same arguments and count alike."""
    program = f"""
import platform, torch, torch.nn.functional as F, internals, switching
from pai_torchacc import _C
torch.manual_seed(0)
x, w, bias = torch.randn(2, 4, 9, 9), torch.randn(4, 4, 3, 3), torch.randn(4)
q, mask = torch.randn(1, 2, 5, 8), torch.randn(5, 5)
calls = [
    lambda x: F.conv2d(x, w, bias, (2, 1), (1, 0), (1, 2)), lambda x: F.conv2d(x, w),
    lambda x: F.conv_transpose2d(x, w, bias, 2, 1, 1),
    lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 0), (1, 2), True),
    lambda x: F.avg_pool2d(x, (3, 2), (2, 1), (1, 0), True, False, 5),
    lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
    lambda x: F.log_softmax(x, 3), lambda x: F.log_softmax(x, 1),
    lambda x: F.scaled_dot_product_attention(x, q, q),
    lambda x: F.scaled_dot_product_attention(x, q, q, mask, scale=0.5),
    lambda x: F.scaled_dot_product_attention(x, q, q, is_causal=True),
]
def results():
    for call in calls:
        given = (q if "attention" in call.__code__.co_names[1] else x).clone()
        y = call(given.requires_grad_())
        y.pow(2).sum().backward()
        yield from (y.detach(), given.grad)
expected = list(results())
with switching.accelerated():
    operators = sorted({{op for _, op in _C.override_names()}})
    assert _C.override_install(operators) is None
    installed = set(_C.override_installed())
    assert len(installed) >= 10, installed
    known = platform.machine() == "x86_64" and not {hidden!r}
    assert set(internals.override_typed()) == (installed if known else set())
    for is_pinned in True, False:
        if not is_pinned:
            for op in operators:
                _C.set_gate(op, _C.reasons().index('excluded'))
        hits = [switching.hits(op) for op in operators]
        tolerance = 1e-3 * is_pinned  # rows may round otherwise; stock may not
        for a, b in zip(expected, results(), strict=True):
            torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)
        assert sum(h.accelerated + sum(h.forwarded.values()) for h in hits) >= 24
        assert sum(h.accelerated for h in hits) >= 10 * is_pinned, hits
assert not internals.override_typed()
assert all(torch.equal(a, b) for a, b in zip(expected, results(), strict=True))
"""
    switching.python(program, PTAC_HIDE_SYMBOLS=hidden)


BY_OVERLOAD = "cpu_max_pool2d_with_indices,cpu_avg_pool2d,cpu_log_softmax"


@pytest.mark.parametrize("hidden", ["", BOXED, BY_OVERLOAD, f"{BOXED},{BY_OVERLOAD}"])
def test_wrong_arguments_get_torchs_own_error(hidden: str) -> None:
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
    switching.python(program, PTAC_HIDE_SYMBOLS=hidden)
