"""Queries, keys, values and masks of attention, and what its operators are held to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contract
import switching
import torch
from torch import Tensor

from pai_torchacc import _C

Sizes = tuple[int, int, int, int, int]
"""Batch, heads, queries, keys, numbers a head."""

Mask = Callable[[int, int, int, int], Tensor]
"""Of batch, heads, queries and keys."""

MASKS: dict[str, Mask | None] = {
    "none": None,
    "causal": None,
    "bool": lambda b, h, n, m: torch.arange(n).view(n, 1) >= torch.arange(m) - m // 2,
    "added": lambda b, h, n, m: torch.linspace(-2, 2, n * m).view(n, m),
    "a head each": lambda b, h, n, m: torch.linspace(-2, 2, h * n * m).view(1, h, n, m),
    "keys": lambda b, h, n, m: torch.linspace(-2, 2, b * m).view(b, 1, 1, m),
    "queries": lambda b, h, n, m: torch.linspace(-2, 2, n).view(n, 1),
    "turned": lambda b, h, n, m: torch.linspace(-2, 2, n * m).view(m, n).t(),
    "padding": lambda b, h, n, m: (torch.arange(m) < (m + 1) // 2).view(1, 1, 1, m),
}


def qkv(
    sizes: Sizes, dtype: torch.dtype = torch.float32, *, inside: bool = True
) -> list[Tensor]:
    """Queries, keys and values, heads inside positions or the other way round."""
    batch, heads, n_q, n_k, d = sizes
    made = []
    for n in (n_q, n_k, n_k):
        if inside:
            made.append(contract.draw(batch, n, heads, d, dtype=dtype).transpose(1, 2))
        else:
            made.append(contract.draw(batch, heads, n, d, dtype=dtype))
    return made


def mask_of(name: str, sizes: Sizes, dtype: torch.dtype) -> Tensor | None:
    """One of MASKS; what is added has the dtype of the rest."""
    make = MASKS[name]
    made = make(*sizes[:4]) if make else None
    return made if made is None or made.dtype == torch.bool else made.to(dtype)


def gradients(y: Tensor, leaves: list[Tensor]) -> dict[str, Tensor]:
    """Of queries, keys and values, for a gradient of the result that varies."""
    grad = torch.cos(torch.arange(y.numel(), dtype=y.dtype)).view(y.shape)
    grads = torch.autograd.grad(y, leaves, grad)
    return dict(zip(("of q", "of k", "of v"), grads, strict=True))


def hold_served(
    ops: tuple[str, ...], case: contract.Case, row: str
) -> list[switching.Hits]:
    """A row's numbers are right, and all operators take part."""
    with switching.accelerated(*ops, row=row):
        hits = [switching.hits(op) for op in ops]
        contract.hold(case)
        assert all(h.accelerated and not h.failed for h in hits), hits
    return hits


def hold_shadow_checks(
    ops: tuple[str, ...], run: Callable[[], Any], **options: Any
) -> None:
    """Three calls of each operator are checked; no check finds a difference."""
    trouble = [_C.counters(op)[5] for op in ops]
    with switching.accelerated(*ops, verify=1, **options):
        hits = [switching.hits(op) for op in ops]
        for _ in range(3):
            run()
        assert all(h.accelerated == 3 and not h.failed for h in hits), hits
    assert [_C.counters(op)[5] for op in ops] == trouble


def by_threads(run: Callable[[], Any]) -> list[Any]:
    """Results with one, two and three of torch's threads."""
    before, found = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            found.append(run())
    finally:
        torch.set_num_threads(before)
    return found
