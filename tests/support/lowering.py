"""Rows that round to bfloat16, switched on in tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import switching

from pai_torchacc import _C

OPS = tuple(op for op, row in _C.bf16_rows() if row == "bf16")

needs_bf16 = pytest.mark.skipif(
    not _C.bf16_hardware(), reason="this CPU does not multiply bfloat16"
)


@contextmanager
def rounding(*ops: str, **options: Any) -> Iterator[dict[str, switching.Hits]]:
    """Every call of these operators in bfloat16 where its row takes it."""
    ops = ops or OPS
    with switching.accelerated(*ops, row="bf16", numerics="fast", **options):
        yield {op: switching.hits(op) for op in ops}
