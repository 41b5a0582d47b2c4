"""Queries, keys, values and masks of attention, for tests of its operators."""

from __future__ import annotations

from collections.abc import Callable

import contract
import torch
from torch import Tensor

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
