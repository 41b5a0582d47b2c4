"""Products by operators of ours, held against stock's."""

from __future__ import annotations

from collections.abc import Callable

import switching
import torch
from torch import Tensor

Make = Callable[[], tuple[Tensor, Tensor]]


def hold(
    op: str, row: str, call: Callable[..., Tensor], make: Make, reason: str | None
) -> None:
    """A product of what is made: by a row, or for some reason by stock."""
    given = make()
    stock = call(*given)
    with switching.accelerated(op, row=row):
        hits = switching.hits(op)
        ours = call(*given)
        assert hits.accelerated == (reason is None)
        assert hits.forwarded == ({reason: 1} if reason else {})
    for of_tensor in (Tensor.size, Tensor.stride, lambda t: t.dtype):
        assert of_tensor(ours) == of_tensor(stock)
    if reason:
        assert torch.equal(ours, stock)
    else:
        torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
