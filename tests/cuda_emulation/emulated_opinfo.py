"""torch's own samples of operators on CUDA: torch's numbers against ours."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Any

import internals
import pytest
import switching
import torch
from opinfo import compare, in_float64, name_of, run, samples
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_map

import pai_torchacc as ptac

OURS: dict[str, tuple[str, ...]] = {
    "log_softmax": ("log_softmax", "log_softmax_backward"),
    "softmax": ("softmax", "softmax_backward"),
    "nn.functional.layer_norm": ("layer_norm", "layer_norm_backward"),
    "nn.functional.rms_norm": ("rms_norm", "rms_norm_backward"),
    "nn.functional.max_pool2d": ("max_pool2d", "max_pool2d_backward"),
    "nn.functional.cross_entropy": ("cross_entropy", "cross_entropy_backward"),
}
"""Operators that are ours on CUDA, and what is counted for their samples."""

EACH = {"nn.functional.max_pool2d": 13}
"""Of operators with very many samples, one in so many: no option has as many values."""

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def on_cuda(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().cuda().requires_grad_(value.requires_grad)


def on_cpu(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().cpu().requires_grad_(value.requires_grad)


def cases() -> list[Any]:
    ours = [op for op in op_db if op.name in OURS]
    return [(op, dtype) for op in ours for dtype in DTYPES if dtype in op.dtypes]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("op", "dtype"), cases(), ids=name_of)
def test_operator(op: Any, dtype: torch.dtype) -> None:
    chosen = islice(samples(op, dtype), 0, None, EACH.get(op.name, 1))
    calls = [
        tree_map(on_cuda, ((sample.input, *sample.args), sample.kwargs))
        for sample in chosen
    ]
    stock = [run(op, *call) for call in calls]
    with ptac.enable("operator_fusion"):
        hits = [switching.hits(name) for name in OURS[op.name]]
        ours = [run(op, *call) for call in calls]
    for number, (call, a, b) in enumerate(zip(calls, ours, stock, strict=True)):
        on_host = tree_map(on_cpu, call)
        exact = partial(run, op, *tree_map(in_float64, on_host))
        mine, theirs = (tree_map(on_cpu, result) for result in (a, b))
        compare(mine, theirs, True, f"{op.name}, sample {number}", exact)
    # A variant asks for another dtype, which no row takes.
    if dtype is not torch.float64 and not op.variant_test_name:
        assert all(h.accelerated for h in hits), hits
    assert not any(h.failed for h in hits), hits
    internals.reset_quarantine()


def test_the_sample_is_there() -> None:
    """Renamed operators would silently fall out of this file."""
    assert OURS.keys() <= {op.name for op in op_db}
