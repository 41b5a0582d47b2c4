"""What tests of the memory pool share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import internals
import pytest
import torch

import pai_torchacc as ptac
from pai_torchacc import _C

slots = internals.pool_slots

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture(autouse=True)
def closed_before_and_after() -> Iterator[None]:
    gc.collect()
    yield
    ptac.disable()
    gc.collect()
    assert _C.pool_state() == ("off", 0)


def is_ours(x: torch.Tensor) -> bool:
    return internals.pool_owns(x.untyped_storage().data_ptr())


def floats(n_bytes: int) -> torch.Tensor:
    return torch.empty(n_bytes // 4)


def stats(key: str) -> int:
    return ptac.memory_stats()[key]
