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
    "_adaptive_avg_pool2d _adaptive_avg_pool2d_backward max_pool3d_with_indices "
    "max_pool3d_with_indices_backward avg_pool3d avg_pool3d_backward "
    "_adaptive_avg_pool3d _adaptive_avg_pool3d_backward _prelu_kernel_backward mish "
    "mish_backward gelu gelu_backward tanh sigmoid silu silu_backward hardswish "
    "hardswish_backward hardsigmoid hardsigmoid_backward mse_loss mse_loss_backward "
    "smooth_l1_loss smooth_l1_loss_backward binary_cross_entropy "
    "binary_cross_entropy_backward binary_cross_entropy_with_logits "
    "_softmax _softmax_backward_data native_layer_norm native_layer_norm_backward "
    "upsample_nearest2d upsample_nearest2d_backward "
    "upsample_bilinear2d upsample_bilinear2d_backward pixel_shuffle pixel_unshuffle "
    "mean.dim "
    "reflection_pad1d reflection_pad1d_backward reflection_pad2d "
    "reflection_pad2d_backward replication_pad1d replication_pad1d_backward "
    "replication_pad2d replication_pad2d_backward "
    "index_select gather "
    "scatter_add embedding_dense_backward _embedding_bag_dense_backward _log_softmax "
    "_embedding_bag _embedding_bag_forward_only "
    "_log_softmax_backward_data _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention_for_cpu_backward "
    "native_batch_norm native_batch_norm_backward mm bmm copy_ "
    "_native_multi_head_attention _transformer_encoder_layer_fwd"
)


def types(schema: torch.FunctionSchema) -> tuple[list[str], int]:
    """Types of the arguments and the number of results, which our overrides go by."""
    return [str(a.type) for a in schema.arguments], len(schema.returns)


@pytest.mark.parametrize("schema", internals.override_schemas())
def test_schemas_are_torchs(schema: str) -> None:
    ours = torch._C.parse_schema(f"aten::{schema}")
    stock = torch._C._get_schema(ours.name, ours.overload_name)
    assert types(ours) == types(stock)
    assert [a.name for a in ours.arguments] == [a.name for a in stock.arguments]


def test_every_operator_is_described_once() -> None:
    on_cpu = {aten for aten, _ in _C.override_names()}
    described = [aten for aten in internals.override_names() if aten in on_cpu]
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
    lambda x: torch.mean(x, (2, 3)), lambda x: torch.mean(x, -1, True).mean(),
    lambda x: torch.mean(x, 1, dtype=torch.float32).mean(1, dtype=torch.double),
    lambda x: F.gelu(x), lambda x: F.gelu(x, approximate="tanh"), lambda x: F.silu(x),
    lambda x: F.smooth_l1_loss(x, x.detach() + 1, beta=0.5),
    lambda x: F.binary_cross_entropy(F.sigmoid(x), F.hardsigmoid(x.detach())),
    lambda x: F.binary_cross_entropy_with_logits(x, F.hardsigmoid(x.detach())),
    lambda x: F.softmax(x, 0), lambda x: F.layer_norm(x, (9,), w[0, 0, 0].repeat(3)),
    lambda x: F.batch_norm(x, bias.clone(), bias.abs(), training=True),
    lambda x: F.batch_norm(x, None, None, bias, w[:, 0, 0, 0], True, 0.3, 0.1),
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
                _C.set_gate(op, 'excluded')
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


BY_OVERLOAD = "cpu_max_pool2d_with_indices,cpu_avg_pool2d,cpu_log_softmax,cpu_mean"


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
    lambda: x.mean((2, 2)), lambda: x.mean(4), lambda: x.mean(1, dtype=torch.int64),
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


@pytest.mark.parametrize("hidden", ["", BOXED])
@pytest.mark.parametrize("theirs_stays", [False, True], ids=["leaves", "stays"])
def test_kernels_that_others_register_after_us(hidden: str, theirs_stays: bool) -> None:
    """Theirs is called while it is there, then ours, and stock's once both are gone."""
    program = f"""
import torch, switching
from pai_torchacc import _C
torch.manual_seed(0)
x, w, rows = torch.randn(2, 3, 9, 9), torch.randn(4, 3, 3, 3), torch.randn(4, 10)
aten = torch.ops.aten
y, indices = aten.max_pool2d_with_indices(x, [2, 2], [2, 2])
calls = {{
    "convolution": ("conv2d", lambda: torch.conv2d(x, w)),
    "max_pool2d_with_indices": ("max_pool2d", lambda: torch.max_pool2d(x, 2)),
    "max_pool2d_with_indices_backward": (
        "max_pool2d_backward",
        lambda: aten.max_pool2d_with_indices_backward(
            y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
        ),
    ),
    "avg_pool2d": ("avg_pool2d", lambda: aten.avg_pool2d(x, [2, 2], [2, 2])),
    "_log_softmax": ("log_softmax", lambda: torch.log_softmax(rows, 1)),
}}
expected = {{aten_name: call() for aten_name, (_, call) in calls.items()}}

def register(name):
    sevens = torch.full_like(expected[name], 7)
    results = sevens, sevens.to(torch.int64)
    n = len(torch._C._get_schema("aten::" + name, "").returns)
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, lambda *args: results if n == 2 else sevens, "CPU")
    return library

def is_theirs(name):
    return bool((calls[name][1]() == 7).all())

def is_ours(name):
    op, call = calls[name]
    hits = switching.hits(op)
    torch.testing.assert_close(call(), expected[name], rtol=1e-4, atol=1e-4)
    return hits.accelerated == 1

others = {{}}
with switching.accelerated():
    operators = [op for op, _ in calls.values()]
    assert _C.override_install(operators) is None
    for name in calls:
        assert is_ours(name), name
        for _ in range(2):  # they come and go as they like
            others[name] = register(name)
            assert is_theirs(name), name
            others.pop(name)._destroy()
            assert is_ours(name), name
        others[name] = register(name)
        assert is_theirs(name), name
    if not {theirs_stays}:
        for name in calls:
            others.pop(name)._destroy()
            assert is_ours(name), name
assert not _C.override_installed()
for name, (op, call) in calls.items():
    assert is_theirs(name) == {theirs_stays}, name
    if {theirs_stays}:
        others[name]._destroy()
    hits = switching.hits(op)
    assert torch.equal(call(), expected[name]), name
    assert hits.accelerated == 0 and not hits.forwarded, hits
"""
    switching.python(program, PTAC_HIDE_SYMBOLS=hidden)


def test_dispatcher_stays_consistent() -> None:
    """Torch checks its table before it says that a device has no kernel."""
    switching.python("""
import torch
import pai_torchacc as ptac
from pai_torchacc import _C

sparse, indices = torch.eye(3).to_sparse(), torch.zeros(3, 3, dtype=torch.long)
calls = [
    lambda: torch.nn.functional.gelu(sparse),
    lambda: torch.nn.functional.max_pool2d(sparse[None], 2),
    lambda: torch.gather(sparse, 0, indices),
    lambda: sparse.bernoulli_(0.5),
]

def errors():
    for name in torch._C._dispatch_get_all_op_names():
        if "_foreach_" not in name:  # one kernel for all devices: none can lack it
            torch._C._dispatch_check_invariants(name)
    for call in calls:
        try:
            call()
        except NotImplementedError as error:
            yield str(error).split(". ")[0]

expected = list(errors())
assert len(expected) == len(calls), expected
rows, one = torch.randn(4, 64), torch.zeros(2, 1, dtype=torch.long).expand(2, 64)
ptac.enable("operator_fusion")
_C.pin("gather", _C.preferred_row("gather"))
assert list(errors()) == expected
library = torch.library.Library("aten", "IMPL")
library.impl("gather", lambda *args, **options: rows, "CPU")
assert torch.gather(rows, 0, one) is rows
assert list(errors()) == expected
library._destroy()
torch.gather(rows, 0, one)
assert _C.counters("gather")[0] == 1  # what torch has registered is still ours
assert list(errors()) == expected
ptac.disable()
assert list(errors()) == expected
torch.gather(rows, 0, one)
assert _C.counters("gather")[0] == 1
""")
