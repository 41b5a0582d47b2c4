"""By how much a step of an optimizer multiplies its rate, where anybody wants to know.

The place where optimizer steps and the adaptive learning rate meet: neither has to be
switched on for the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REHEARSED = "_multiplier_to_rehearse"
"""Attribute of an optimizer that repeats a step: the multiplier that it had."""

_ask: Callable[[Any, Any], float] | None = None


def answers(ask: Callable[[Any, Any], float] | None) -> None:
    """Who answers from now on; None for nobody."""
    global _ask  # noqa: PLW0603
    _ask = ask


def multiplier(optimizer: Any, group: Any = None) -> float:
    """For the step that this optimizer is about to make, of all groups or of one."""
    return 1.0 if _ask is None else _ask(optimizer, group)


def beneath(function: Any) -> Any:
    """What a stand-in that multiplies rates stands for; other functions themselves."""
    return getattr(function, "multiplies_rates_of", function)
