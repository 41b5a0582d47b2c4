"""Memory reuse switched on in tests, and counting what it did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import internals
import pytest
import torch
from torch import Tensor

from pai_torchacc import _host, memory_reuse
from pai_torchacc.memory_reuse import saved_storage

c = _host.load()


class SavesBoth(torch.autograd.Function):
    """A function of a program, which saves its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x * 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return g * x + g * y * 10


class Saved:
    """What has been saved, by mechanism, since this was made."""

    def __init__(self) -> None:
        self._before = memory_reuse.saved_bytes(c)

    def times(self, mechanism: str = "all") -> int:
        now = memory_reuse.saved_bytes(c)[mechanism]["count"]
        return now - self._before[mechanism]["count"]


@contextmanager
def reused(least: int = 0, smallest: int = 256 << 10) -> Iterator[Saved]:
    """Switched on, also where few bytes are saved; for tensors from a size on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saved_storage, "ENOUGH", least)
        patch.setattr(saved_storage, "_is_worthwhile", True)
        patch.setattr(saved_storage, "_LITTLE", 0)
        assert memory_reuse.install(c) is None
        before = internals.saved_least(smallest)
        try:
            yield Saved()
        finally:
            internals.saved_least(before)
            memory_reuse.remove(c)


def current_bytes() -> int:
    """That are saved now: 0 when no graph is left."""
    return memory_reuse.saved_bytes(c)["all"]["current"]
