"""Whether the running Python numbers each state of a dictionary.

CPython does up to 3.12 (PEP 509). From 3.13 on attributes that lie in their object are
changed without the object's dictionary being told, so that the number there says
nothing: tried out on plain dictionaries alone it seems to be what it was.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

_ROUNDS = 200
"""More than it takes until the interpreter has bytecode of its own for a store."""

_LAST = (3, 12)


class _Holder:
    kept: Any = None


def _by_name(holder: Any, value: Any) -> None:
    holder.kept = value


def _by_setattr(holder: Any, value: Any) -> None:
    object.__setattr__(holder, "kept", value)


def _by_item(holder: Any, value: Any) -> None:
    holder.__dict__["kept"] = value


def _by_a_new_name(holder: Any, value: Any) -> None:
    holder.__dict__[f"kept{id(value)}"] = value


@functools.cache
def are_told(c: Any) -> bool:
    """Every way to change an object's attributes changes the number; looks do not."""
    ways = (_by_name, _by_setattr, _by_item, _by_a_new_name)
    return sys.version_info[:2] <= _LAST and all(
        _are_told_by(c, kind, way) for kind in (_Holder, nn.Module) for way in ways
    )


def _are_told_by(
    c: Any, kind: Callable[[], Any], change: Callable[[Any, Any], None]
) -> bool:
    holder, other = kind(), kind()
    holder.kept = other.kept = None
    attributes = holder.__dict__
    values = [object() for _ in range(_ROUNDS)]
    for value in values:
        before = c.dict_word(attributes)
        change(holder, value)
        after = c.dict_word(attributes)
        _ = holder.kept, attributes.get("kept"), len(attributes)
        is_new = after not in (0, before, c.dict_word(other.__dict__))
        if not is_new or c.dict_word(attributes) != after:
            return False
    return True
