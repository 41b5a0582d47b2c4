"""By how much a step of an optimizer multiplies its rate, and what it tells in return.

The place where optimizer steps and the adaptive learning rate meet: neither has to be
switched on for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REHEARSED = "_multiplier_to_rehearse"
"""Attribute of an optimizer that repeats a step: the multiplier that it had."""

Coming = tuple[float, list[float] | None]
"""The multiplier of a coming step; and, where they are wanted, a list for one number of
each group that has gradients: the sum of gradient times direction."""

_ask: Callable[[Any, Any], Coming] | None = None


def answers(ask: Callable[[Any, Any], Coming] | None) -> None:
    """Who answers from now on; None for nobody."""
    global _ask  # noqa: PLW0603
    _ask = ask


def coming(optimizer: Any, group: Any = None) -> Coming:
    """For the step that this optimizer is about to make, of all groups or of one."""
    return (1.0, None) if _ask is None else _ask(optimizer, group)


def beneath(function: Any) -> Any:
    """What a stand-in that multiplies rates stands for; other functions themselves."""
    return getattr(function, "multiplies_rates_of", function)
