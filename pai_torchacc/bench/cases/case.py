"""What one case is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import pai_torchacc as ptac
from pai_torchacc.calibration import Work

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
    work: Work
    variants: tuple[Make, ...]
    with_ops: tuple[str, ...] = ()
    """Other operators that the call needs switched on."""
    without_rows: tuple[str, ...] = ()
    """Rows that cannot be faster and would take minutes to show it."""
    forwarded_to: tuple[str, ...] = ()
    """Operators of ours that stock calls for it; rows have to beat that as well."""
    allows_tf32: bool = False
    """Whether products of float32 on CUDA are TF32's."""


class Planned:
    """A module's call without gradients, by a plan of the rows of the moment."""

    CALLS = 3
    """After so many a plan has been made and run."""

    def __init__(self, module: torch.nn.Module, *inputs: torch.Tensor) -> None:
        """Of ``module`` there are copies that are optimized; itself it stays."""
        self.module, self.inputs = module, inputs
        self.planned = module

    def begin(self) -> None:
        """Plan it anew."""
        self.planned = ptac.optimize(copy.deepcopy(self.module))
        for _ in range(self.CALLS):
            self()

    def stock(self) -> Any:
        """The call as torch makes it."""
        with torch.no_grad():
            return self.module(*self.inputs)

    def __call__(self) -> Any:
        """What the optimized module returns."""
        with torch.no_grad():
            return self.planned(*self.inputs)


class Gradient:
    """A call of backward alone, of ``grad`` through what ``forward`` returns.

    Some gradients follow the row that served their forward call, so that a call of
    ``begin`` goes before each measurement: it runs forward by the rows of the moment.
    """

    def __init__(
        self,
        forward: Callable[[], torch.Tensor],
        wanted: list[torch.Tensor],
    ) -> None:
        """Differentiate with regard to ``wanted``, which are leaves."""
        self.forward = forward
        self.wanted = [t.requires_grad_() for t in wanted]
        self.begin()
        self.grad = torch.randn_like(self.y)

    def begin(self) -> None:
        """Compute the graph anew."""
        self.y = self.forward()

    def __call__(self) -> tuple[torch.Tensor, ...]:
        """The gradients of the wanted tensors."""
        return torch.autograd.grad(self.y, self.wanted, self.grad, retain_graph=True)
