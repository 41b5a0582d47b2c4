"""The table of features: what each switch is called, and what it can do.

A switch's own module puts its row in by :func:`register` when the package is imported.
``_switch`` and ``_report`` go through the table and import no switch, so imports run
one way: this module at the bottom, the switches above ``_switch``, the package on top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from pai_torchacc._config import Config


@dataclass(frozen=True)
class Feature:
    """One switch.

    Functions that take ``c`` get the extension; the others are also called where there
    is none.
    """

    name: str
    rank: int
    """Features are switched on in the order of their ranks, and off in reverse."""
    install: Callable[[Any, Config], str | None]
    """Make the process be as the Config says; the reason where that cannot be.

    What an exception cuts short is undone by ``remove``. An exception of the kinds that
    a torch unlike those known brings is a reason as well.
    """
    remove: Callable[[Any], None]
    """Undo everything, also what an exception cut short, at once or when it is safe."""
    about: Callable[[Config], str]
    """What is on, in a few words for the log."""
    is_in_bare_enable: bool = False
    options: str | None = None
    """The Config's field that falls back once all features that name it are off."""
    forget: Callable[[Config], Config] = lambda config: config
    """The configuration without what else this feature put there, once it is off."""
    status: Callable[[Any], dict[str, Any]] = lambda c: {}
    """What its entry in the status has beyond the ordinary."""
    leftover: Callable[[Any], list[str]] = lambda c: []
    """Operators whose dispatcher entries wait for a quiet moment to be removed."""
    remarks: Callable[[], list[str]] = lambda: []
    """Sentences for the report, such as what others have patched."""
    document: Callable[[], dict[str, Any]] = lambda: {}
    """Its part of the report's document; parts with a common key are merged."""
    lines: Callable[[dict[str, Any]], list[str]] = lambda content: []
    """The lines of the text report that its part of the document gives."""
    reset: Callable[[Any], None] = lambda c: None
    """Begin counting anew."""


_table: dict[str, Feature] = {}


def register(module: str, name: str, rank: int, **more: Any) -> None:
    """Put a switch in the table.

    Its functions are those of this module that have the names of the row's fields.
    """
    functions = vars(sys.modules[module])
    own = {f.name: functions[f.name] for f in fields(Feature) if f.name in functions}
    _table[name] = Feature(**own, name=name, rank=rank, **more)


def all_features() -> list[Feature]:
    """All switches, in the order in which they are switched on."""
    return sorted(_table.values(), key=lambda feature: feature.rank)


def names() -> tuple[str, ...]:
    """The names of all switches, in the same order."""
    return tuple(feature.name for feature in all_features())


def in_bare_enable() -> tuple[str, ...]:
    """What ``enable()`` without names switches on."""
    return tuple(f.name for f in all_features() if f.is_in_bare_enable)


def feature(name: str) -> Feature:
    """The switch of this name."""
    return _table[name]
