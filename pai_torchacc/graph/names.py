"""What a function reads by name: modules to look at, and names that must stay."""

from __future__ import annotations

import dis
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

_MOST_NAMES = 256
"""That are compared at each call."""

_LIBRARIES = ("torch.", "torchvision.", "pai_torchacc.", "numpy.")

_MOST_ITEMS = 16
"""Of lists and dictionaries that are looked into."""

Binding = tuple[Any, str | int | None, Any]
"""A dictionary and a name, a list and an index, or a cell and None; what is there. Or a
dictionary or list, and twice None: its length."""


@dataclass
class Names:
    """What a callable depends on by name."""

    modules: list[nn.Module] = field(default_factory=list)
    bindings: list[Binding] = field(default_factory=list)
    are_all: bool = True
    """There were not too many."""

    def __post_init__(self) -> None:
        self._seen: set[int] = set()
        self._found: set[tuple[int, str | int | None]] = set()

    def add(self, home: Any, name: str | int | None, object: Any) -> None:
        """A name, and what hangs on it."""
        if (id(home), name) in self._found:
            return
        self._found.add((id(home), name))
        if len(self.bindings) == _MOST_NAMES:
            self.are_all = False
            return
        self.bindings.append((home, name, object))
        self.look_at(object)

    def look_at(self, object: Any) -> None:
        """A module, a function of the program's, or a list of these."""
        if id(object) in self._seen:
            return
        self._seen.add(id(object))
        if isinstance(object, nn.Module):
            self.modules.append(object)
        elif isinstance(object, FunctionType):
            if not f"{object.__module__}.".startswith(_LIBRARIES):
                self._look_at_function(object)
        elif isinstance(object, MethodType):
            self._look_at_owner(object.__self__)
            self.look_at(object.__func__)
        elif type(object) is tuple:
            for item in object:
                self.look_at(item)
        elif type(object) in (list, dict):
            self._look_at_container(object)
        elif isinstance(object, Optimizer):
            self.bindings.append((object.param_groups, None, None))
            for group in object.param_groups:
                if type(group.get("params")) is list:
                    self.bindings.append((group["params"], None, None))

    def _look_at_container(self, object: Any) -> None:
        """Its length; and its items, if they are few."""
        self.bindings.append((object, None, None))
        if len(object) > _MOST_ITEMS:
            return
        for key in object if type(object) is dict else range(len(object)):
            if type(key) in (str, int):
                self.add(object, key, object[key])

    def _look_at_owner(self, owner: Any) -> None:
        """The object whose method is called."""
        if isinstance(owner, nn.Module):
            self.look_at(owner)
            return
        for name, value in getattr(owner, "__dict__", {}).items():
            self.add(owner.__dict__, name, value)

    def _look_at_function(self, function: FunctionType) -> None:
        defaults = (function.__defaults__, function.__kwdefaults__)
        for values in defaults:
            self.look_at(values)
        for cell in function.__closure__ or ():
            if (found := _content_of(cell)) is not None:
                self.add(cell, None, found[0])
        for name in dict.fromkeys(_names_in(function.__code__)):
            home = function.__globals__
            if name in home:
                self.add(home, name, home[name])


def names_of(function: Any, arguments: list[Any]) -> Names:
    """Of a function or method, and of the program's functions that it calls by name.

    Of a method's owner the attributes count as names, one level deep. Arguments are
    looked at as if they had names.
    """
    names = Names()
    for argument in arguments:
        names.look_at(argument)
    names.add(vars(torch.autograd), "backward", torch.autograd.backward)
    names.look_at(function)
    if not isinstance(function, FunctionType | MethodType):
        call = vars(type(function)).get("__call__")
        if isinstance(call, FunctionType):
            names.look_at(MethodType(call, function))
    return names


def _content_of(cell: CellType) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name without a value yet
        return None


def _names_in(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield str(instruction.argval)
    constants: Iterable[Any] = code.co_consts
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)
