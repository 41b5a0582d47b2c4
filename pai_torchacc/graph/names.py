"""What a function reads by name: modules to look at, and names that must stay."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pai_torchacc.graph.signature import OF_TRAINING

_MOST_NAMES = 256
"""That are compared at each call."""

_LIBRARIES = ("torch.", "torchvision.", "pai_torchacc.", "numpy.")

_MOST_ITEMS = 16
"""Of lists and dictionaries that are looked into."""

_GLOBALS = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
"""Instructions that read names of the one kind and of the other."""

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
        self._methods: set[tuple[int, int]] = set()
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
            self.look_at_method(object.__self__, object.__func__)
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

    def look_at_method(self, owner: Any, function: Any) -> None:
        """A method: attributes of its owner that it, or another one it calls, reads."""
        if isinstance(owner, nn.Module) or not isinstance(function, FunctionType):
            self.look_at(owner)
            self.look_at(function)
            return
        if (id(owner), id(function)) in self._methods:
            return
        self._methods.add((id(owner), id(function)))
        self.look_at(function)
        held = getattr(owner, "__dict__", {})
        for name in dict.fromkeys(_names_in(function.__code__, _ATTRIBUTES)):
            if name in held:
                self.add(held, name, held[name])
                continue
            for cls in type(owner).__mro__:  # which super() may ask as well
                if (method := _function_in(vars(cls).get(name))) is not None:
                    self.look_at_method(owner, method)

    def _look_at_function(self, function: FunctionType) -> None:
        defaults = (function.__defaults__, function.__kwdefaults__)
        for values in defaults:
            self.look_at(values)
        for cell in function.__closure__ or ():
            if (found := _content_of(cell)) is not None:
                self.add(cell, None, found[0])
        for name in dict.fromkeys(_names_in(function.__code__, _GLOBALS)):
            home = function.__globals__
            if name in home:
                self.add(home, name, home[name])

    def is_like(self, other: Names) -> bool:
        """The same names stand for the same objects."""
        return [_identities(one) for one in self.bindings] == [
            _identities(one) for one in other.bindings
        ] and list(map(id, self.modules)) == list(map(id, other.modules))


def names_of(function: Any, arguments: list[Any]) -> Names:
    """Of a function or method, and of the program's functions that it calls by name.

    Of a method's owner the attributes that it reads count as names, one level deep.
    Arguments are looked at as if they had names, and the owner, where it is one.
    """
    names = Names()
    for argument in arguments:
        if isinstance(argument, OF_TRAINING):
            names.look_at(argument)
        else:
            names.look_at_method(argument, function)
    names.add(vars(torch.autograd), "backward", torch.autograd.backward)
    names.look_at(function)
    if not isinstance(function, FunctionType | MethodType):
        call = vars(type(function)).get("__call__")
        if isinstance(call, FunctionType):
            names.look_at(MethodType(call, function))
    return names


def owner_of(function: Any, args: tuple[Any, ...]) -> Any:
    """The first argument, where the function is a method of its class; or None."""
    if not args or isinstance(args[0], Tensor | nn.Module):
        return None
    name = getattr(function, "__name__", "")
    method = inspect.getattr_static(type(args[0]), name, None)
    return args[0] if getattr(method, "__wrapped__", None) is function else None


def _function_in(found: Any) -> FunctionType | None:
    """Behind what a class has under a name: a method, a property, one of ours."""
    found = found.fget if isinstance(found, property) else found
    found = inspect.unwrap(found) if isinstance(found, FunctionType) else found
    return found if isinstance(found, FunctionType) else None


def _identities(binding: Binding) -> Any:
    home, name, object = binding
    return id(home), name, id(object)


def _content_of(cell: CellType) -> tuple[Any] | None:
    try:
        return (cell.cell_contents,)
    except ValueError:  # a name without a value yet
        return None


def _names_in(code: CodeType, instructions: frozenset[str]) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in instructions:
            yield str(instruction.argval)
    constants: Iterable[Any] = code.co_consts
    for constant in constants:
        if isinstance(constant, CodeType):
            yield from _names_in(constant, instructions)
