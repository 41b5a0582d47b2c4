"""What a program's own objects hold, so that a change in a training step shows."""

from __future__ import annotations

from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pai_torchacc.graph.refusals import CannotPlan

_MOST_ITEMS = 4096
"""Of containers whose items are compared; of larger ones the length is."""

_ELSEWHERE = FunctionType | MethodType | ModuleType | nn.Module | Tensor | type
"""Objects that are looked at otherwise, or that do not hold a program's state."""

_CHANGE = LRScheduler | GradScaler
"""Objects that change by what is called of them, which a replay calls, too."""


class Program:
    """Objects that a step reaches by name or by argument.

    Parameters
    ----------
    objects : list
        Which.
    """

    def __init__(self, objects: list[Any]):
        kinds = _ELSEWHERE | _CHANGE | Optimizer
        self._others = [one for one in objects if not isinstance(one, kinds)]
        self._optimizers = [one for one in objects if isinstance(one, Optimizer)]
        self._before = [_held_by(one) for one in self._others]
        self._groups: list[Any] = []
        self.groups_may_change()

    def meet(self, met: Optimizer) -> None:
        """An optimizer that is reached in another way."""
        if not any(met is one for one in self._optimizers):
            self._optimizers.append(met)
            self._groups.append(_numbers_of(met))

    def groups_may_change(self) -> None:
        """A node ends: what it has changed in optimizers it will change again."""
        self._groups = [_numbers_of(one) for one in self._optimizers]

    def check_groups(self) -> None:
        """Refuse where the program itself has changed an optimizer's numbers."""
        if self._groups != [_numbers_of(one) for one in self._optimizers]:
            raise CannotPlan("an optimizer's numbers are changed within the step")

    def check(self) -> None:
        """Refuse where objects hold others than they did."""
        self.check_groups()
        for one, before in zip(self._others, self._before, strict=True):
            if _held_by(one) != before:
                text = f"an object of the class {type(one).__qualname__} changes"
                raise CannotPlan(text)


def _held_by(one: Any) -> Any:
    """Its attributes and items, by their identity."""
    held = [list(map(id, getattr(one, "__dict__", {}).values()))]
    if isinstance(one, dict):
        one = [*one.keys(), *one.values()] if len(one) <= _MOST_ITEMS else one
    if isinstance(one, list | set | dict | bytearray):
        few = len(one) <= _MOST_ITEMS and not isinstance(one, dict | set)
        held.append(list(map(id, one)) if few else [len(one)])
    return held


def _numbers_of(one: Optimizer) -> Any:
    return [
        {name: id(value) for name, value in group.items() if name != "params"}
        for group in one.param_groups
    ]
