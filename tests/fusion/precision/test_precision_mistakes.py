"""The room of reduced precision: what goes wrong outside of its rows breaks none."""

from __future__ import annotations

from typing import Any

import pytest
import switching
import torch
from lowering import needs_bf16, rounding
from torch import Tensor


def flash(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, **options
    )


def is_older() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)


MISTAKES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "mask": ((1, 2, 8, 16), (1, 2, 8, 16), {"attn_mask": torch.zeros(3, 3)}),
    "dtype of the mask": (
        *((1, 2, 8, 16), (1, 2, 8, 16)),
        {"attn_mask": torch.zeros(8, 8, dtype=torch.float64)},
    ),
    "size of heads": ((1, 2, 8, 32), (1, 2, 8, 32), {}),
}


@needs_bf16
@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_of_the_user_break_no_row(mistake: str) -> None:
    q = torch.randn(1, 2, 8, 16)
    k_sizes, v_sizes, options = MISTAKES[mistake]

    def outcome() -> Any:
        torch.manual_seed(0)
        try:
            made = flash(q, torch.randn(k_sizes), torch.randn(v_sizes), **options)
        except RuntimeError as error:
            return str(error)
        return type(made)

    stock = outcome()
    with rounding("attention") as hits:
        # Torch's C functions tell no message before 2.13; it is on stderr then.
        assert outcome() in (stock, *(["attention failed"] if is_older() else []))
        assert hits["attention"].failed == 0
        flash(q, q, q)
        assert hits["attention"].accelerated == 1


@needs_bf16
def test_want_of_memory_breaks_no_row() -> None:
    """Torch's library finds none for its result; stock may, or raises."""
    program = """
import resource, torch, torch.nn.functional as F, switching
x, w = torch.ones(1, 16, 1024, 1024), torch.ones(16, 16, 3, 3)
def call(x):
    return F.conv2d(x, w, padding=1)
def limit(extra):
    pages = int(open("/proc/self/statm").read().split()[0])
    most = pages * resource.getpagesize() + (extra << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
with torch.no_grad():
    with switching.accelerated("conv2d", row="bf16", numerics="fast"):
        call(x[:, :, :64])
        hits = switching.hits("conv2d")
        limit(64 + 32 + 16)
        try:
            call(x)
        except RuntimeError as error:
            assert "memory" in str(error), error
        limit(1 << 20)
        before = hits.accelerated
        call(x)
        print(hits.failed, hits.accelerated - before)
"""
    assert switching.python(program).split() == ["0", "1"]
