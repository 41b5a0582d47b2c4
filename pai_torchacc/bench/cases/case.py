"""What one case is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
Make = Callable[[], Call]

FLOATS = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Case:
    """One place in a calibration table; each of ``variants`` builds a call there.

    The table keeps the worst of their ratios.
    """

    op: str
    kind: str
    dtype: str
    work: int
    variants: tuple[Make, ...]
    with_ops: tuple[str, ...] = ()
    """Other operators that the call needs switched on."""
    without_rows: tuple[str, ...] = ()
    """Rows that cannot be faster and would take minutes to show it."""
    forwarded_to: tuple[str, ...] = ()
    """Operators of ours that stock calls for it; rows have to beat that as well."""
