"""Whether an object would keep another one alive."""

from __future__ import annotations

import gc
from types import FunctionType, ModuleType
from typing import Any

_MOST_OBJECTS = 100_000
"""That are looked at; who holds more is taken to reach whatever it likes."""


def reaches(holder: Any, target: Any) -> bool:
    """``target`` is held by what ``holder`` holds, however far away.

    What others own is passed over: files of Python and their names, and classes.
    """
    seen = {id(holder)}
    edge = [holder]
    while edge:
        found = gc.get_referents(*(one for each in edge for one in _followed(each)))
        edge = []
        for one in found:
            if one is target:
                return True
            if gc.is_tracked(one) and id(one) not in seen and not _is_of_others(one):
                seen.add(id(one))
                edge.append(one)
        if len(seen) > _MOST_OBJECTS:
            return True
    return False


def _followed(holder: Any) -> tuple[Any, ...]:
    """What is asked for what it holds; of functions all but their file's names."""
    if isinstance(holder, FunctionType):
        return holder.__closure__ or (), holder.__defaults__ or (), vars(holder)
    return (holder,)


def _is_of_others(one: Any) -> bool:
    if isinstance(one, type | ModuleType):
        return True
    return type(one) is dict and "__name__" in one and "__builtins__" in one
