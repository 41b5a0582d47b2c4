"""What the functions of a call can have read: bindings that guards compare.

From the global names of the functions that ran, their closures and defaults, and the
modules under guard, it is followed what objects they lead to, by the attributes that
any of these functions asks for. Each object is of a kind that stays as it is, or that a
guard compares; else the call is refused. The dictionaries of modules are under guard
anyway; what those hold is looked into here.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections import namedtuple
from collections.abc import Iterator
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
    UnionType,
    WrapperDescriptorType,
)
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.unedited import trusted
from pai_torchacc.graph.unedited.instructions import scan, words
from pai_torchacc.graph.unedited.observing import Names, Observed

MOST_BINDINGS = 1024
"""That are compared at each call."""

_MOST_ITEMS = 64
"""Of a container."""

_CONSTANTS = (
    *(int, float, complex, bool, str, bytes, type(None), type(Ellipsis)),
    *(type(NotImplemented), range, slice, torch.Size, torch.finfo, torch.iinfo),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(GenericAlias, UnionType),
)
_OF_C = (
    *(BuiltinFunctionType, MethodDescriptorType),
    *(WrapperDescriptorType, MethodWrapperType),
)

_HEAP_TYPE = 1 << 9
"""Of a class's flags: it is not one of the interpreter's own."""

_LARGEST = object.__basicsize__ + 16
"""Bytes of an object that has a dictionary and weak references, and nothing else."""

_OF_MODULES = (vars(nn.Module()).keys() | vars(nn.Module).keys()) - {"training"}
"""Attributes by which torch's modules work, and which guards know."""

_OF_FUNCTIONS = "__code__", "__defaults__", "__kwdefaults__"
_OF_PARTIALS = "func", "args", "keywords"
"""What they consist of, which may be replaced in place."""

_ALL_TENSORS = words("""
    parameters named_parameters buffers named_buffers state_dict _parameters _buffers
    get_parameter get_buffer
    """)

Binding = tuple[Any, ...]
"""As ``csrc/bind/python/graph/bindings.h`` reads it."""


class Reading:
    """All that a call can have read.

    Parameters
    ----------
    observed : Observed
        What it has executed.
    modules : list of Module
        Those under guard.
    used : set of int
        Tensors of theirs that the recorded operators read, by ``id()``.

    Raises
    ------
    CannotPlan
        Something is not of a kind that can be compared.
    """

    def __init__(self, observed: Observed, modules: list[nn.Module], used: set[int]):
        self.bindings: list[Binding] = []
        self.modules = list(modules)
        """Those under guard, and others that were met."""
        self._observed = observed
        self._used = used
        self._n_read = 0
        self._known = set(map(id, modules))
        self._found: set[tuple[int, Any]] = set()
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        self._functions: dict[CodeType, dict[int, FunctionType]] = {}
        self._meanings: dict[type, set[str]] = {}
        self._names: dict[str, str] = {}
        """Attributes that any function asks for, and where."""
        for code, _ in observed.program:
            for name, line in scan(code).attributes.items():
                self._names.setdefault(name, f"{code.co_filename}:{line}")
        self._torchs_names = {
            name for code, _ in observed.torchs for name in scan(code).attributes
        }
        self._add_class(Tensor)
        for code, names in observed.program:
            self._read_names(code, names)
        for code, names in observed.torchs:
            self._read_torchs_names(code, names)
        self._read_modules()
        self._read_functions()
        self._check_written()
        self.bindings.sort(key=_id_of_home)

    def is_like(self, other: Reading) -> bool:
        """The same names stand for the same objects."""
        mine, theirs = (set(map(_identities, one.bindings)) for one in (self, other))
        return mine == theirs and list(map(id, self.modules)) == list(
            map(id, other.modules)
        )

    def join(self, other: Reading) -> None:
        """What another call has read is read as well."""
        known = set(map(_identities, self.bindings))
        more = [one for one in other.bindings if _identities(one) not in known]
        self.bindings = sorted([*self.bindings, *more], key=_id_of_home)
        self.modules = list(dict.fromkeys([*other.modules, *self.modules]))

    def check_arguments(self, tensors: list[Tensor]) -> None:
        """Raise :class:`CannotPlan` where one has attributes that are asked for.

        Also where the call can come to one by another way, and compare the two.
        """
        for tensor in tensors:
            names = self._names.keys() & getattr(tensor, "__dict__", {}).keys()
            for name in sorted(names):
                text = f"an argument is a tensor with the attribute {name}"
                raise CannotPlan(text, self._names[name])
            if id(tensor) in self._seen:
                raise CannotPlan("an argument is a tensor that is read by name as well")

    def check_result(self, returned: Any) -> None:
        """Raise :class:`CannotPlan` where it has a container that lives on.

        A replayed call returns a new one.
        """
        if isinstance(returned, list | dict) and id(returned) in self._seen:
            raise CannotPlan("a container that outlives the call is returned")
        if isinstance(returned, list | tuple | dict):
            items = returned.values() if isinstance(returned, dict) else returned
            for item in items:
                self.check_result(item)

    # --- bindings

    def _bind(self, home: Any, name: Any, *object: Any) -> None:
        """A name, and what stands there, if anything does."""
        if (id(home), name) in self._found:
            return
        self._found.add((id(home), name))
        self._kept.append(home)
        if len(self.bindings) >= MOST_BINDINGS:
            raise CannotPlan("it reads more names than are compared")
        self.bindings.append((home, name, *object))

    def _bind_parts(self, object: Any, names: tuple[str, ...]) -> None:
        """Attributes that are no items of its dictionary."""
        self._bind(object, names, tuple(getattr(object, name) for name in names))

    def _add_class(self, cls: type) -> None:
        self._bind(cls, None, None)

    # --- functions

    def _read_names(self, code: CodeType, names: Names) -> None:
        for chain, line in scan(code).chains.items():
            place = f"{code.co_filename}:{line}"
            found = self._read_global(chain[0], names)
            if found:
                is_handed = chain in scan(code).handed
                self._read_chain(found[0], chain, place, is_handed)

    def _read_global(self, name: str, names: Names) -> tuple[Any] | None:
        here, builtins = names
        if name in here:
            self._bind(here, name, here[name])
            return (here[name],)
        self._bind(here, name)
        if name not in builtins:
            return None
        self._bind(builtins, name, builtins[name])
        return (builtins[name],)

    def _read_chain(
        self, object: Any, chain: tuple[str, ...], place: str, is_handed: bool = True
    ) -> None:
        """Attributes of Python modules, to what is none.

        A function of C that is no more than called is seen when it is.
        """
        said = chain[0]
        for name in chain[1:]:
            if type(object) is not ModuleType:
                break
            home = vars(object)
            said = f"{said}.{name}"
            if name not in home:
                raise CannotPlan(f"{said} is not plainly in its module", place)
            self._bind(home, name, home[name])
            object = home[name]
        if type(object) in _OF_C:
            self._look_at_owner(object, said, place)
        if is_handed or type(object) not in _OF_C:
            self._look(object, said, place)

    def _look_at_owner(self, function: Any, said: str, place: str) -> None:
        """What a method of C is of, that was taken from it earlier."""
        if function in (getattr, hasattr, next, format):
            if said.rpartition(".")[2] != function.__name__:
                raise CannotPlan(f"{said} is {function.__name__}", place)
            return
        owner = getattr(function, "__self__", None)
        if owner is None or isinstance(owner, ModuleType | type):
            return
        kind = type(owner)
        if kind.__module__.startswith("pybind11") or kind.__name__ == "PyCapsule":
            return  # how torch's own functions are bound
        self._look(owner, f"what {said} is of", place)

    def _read_torchs_names(self, code: CodeType, names: Names) -> None:
        """Of a function of torch's, which somebody may have patched."""
        for chain in scan(code).chains:
            home = names[0]
            for name in chain:
                if name not in home:
                    break
                self._bind(home, name, home[name])
                if type(home[name]) is not ModuleType:
                    break
                home = vars(home[name])

    def _read_functions(self) -> None:
        """Closures and defaults of the functions that ran, which lead to others."""
        done: set[int] = set()
        while waiting := [
            function
            for code, _ in self._observed.program
            for function in self._functions.get(code, {}).values()
            if id(function) not in done
        ]:
            for function in waiting:
                done.add(id(function))
                self._read_function(function)
            self._read_modules()
        ran = [code for code, _ in self._observed.program]
        known = {id(one) for code in ran for one in _within(code)}
        known |= {
            id(f.__code__) for of in self._functions.values() for f in of.values()
        }
        for code in ran:
            if id(code) not in known:
                place = f"{code.co_filename}:{code.co_firstlineno}"
                text = f"{code.co_qualname} is a function that no known name leads to"
                raise CannotPlan(text, place)

    def _read_function(self, function: FunctionType) -> None:
        code = function.__code__
        self._bind_parts(function, _OF_FUNCTIONS)
        place = f"{code.co_filename}:{code.co_firstlineno}"
        said = f"a default of {code.co_name}"
        self._look(function.__defaults__, said, place)
        if function.__kwdefaults__:
            self._look(function.__kwdefaults__, said, place)
        chains = scan(code).cells
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in cells.items():
            try:
                content = cell.cell_contents
            except ValueError:  # a name without a value yet
                text = f"{name} of {code.co_name} has no value yet"
                raise CannotPlan(text, place) from None
            self._bind(cell, None, content)
            asked = [chain for chain in chains if chain[0] == name]
            if type(content) is not ModuleType:
                asked = [(name,)]
            for chain in asked:
                self._read_chain(content, chain, place)

    def _register(self, function: Any) -> None:
        """A function that may have run; and the one that it wraps."""
        while isinstance(function, FunctionType):
            of_code = self._functions.setdefault(function.__code__, {})
            of_code[id(function)] = function
            function = function.__dict__.get("__wrapped__")

    # --- objects

    def _look(self, object: Any, said: str, place: str) -> None:
        """Whatever is found by a name: ``said`` is how the program came to it."""
        if type(object) in _CONSTANTS or id(object) in self._seen:
            return
        self._seen.add(id(object))
        self._kept.append(object)
        if isinstance(object, FunctionType):
            self._look_at_function(object, said, place)
        elif isinstance(object, type):
            self._look_at_class(object, said, place)
        elif isinstance(object, nn.Module):
            self._add_module(object)
        elif isinstance(object, Tensor):
            self._look_at_tensor(object, said, place)
        elif isinstance(object, MethodType):
            for part in (object.__self__, object.__func__):
                self._look(part, said, place)
        elif type(object) in _OF_C:
            if not trusted.may_call(object):
                raise CannotPlan(f"{said} is a function that is not plain", place)
            self._look_at_owner(object, said, place)
        elif type(object) in (list, dict):
            self._look_at_container(object, said, place)
        elif isinstance(object, tuple | frozenset):
            self._look_at_immutable(object, said, place)
        else:
            self._look_at_object(object, said, place)

    def _look_at_function(self, function: FunctionType, said: str, place: str) -> None:
        self._register(function)
        for name, value in function.__dict__.items():
            if name in self._names:
                self._bind(function, name, value)
                self._look(value, f"{said}.{name}", place)

    def _look_at_tensor(self, tensor: Tensor, said: str, place: str) -> None:
        if type(tensor) not in (Tensor, nn.Parameter):
            raise CannotPlan(f"{said} is of the class {_class_of(tensor)}", place)
        if not self._names.keys().isdisjoint(getattr(tensor, "__dict__", ())):
            raise CannotPlan(f"{said} is a tensor with attributes of its own", place)
        if id(tensor) not in self._used:
            self._bind(tensor, None, None)  # its sizes and strides

    def _look_at_container(self, object: Any, said: str, place: str) -> None:
        if len(object) > _MOST_ITEMS:
            raise CannotPlan(f"{said} has too many items to compare", place)
        self._bind(object, None, None)
        for key in object if type(object) is dict else range(len(object)):
            if type(key) not in (str, int):
                text = f"{said} has a key of the class {_class_of(key)}"
                raise CannotPlan(text, place)
            self._bind(object, key, object[key])
            self._look(object[key], f"{said}[{key!r}]", place)

    def _look_at_immutable(self, object: Any, said: str, place: str) -> None:
        """A tuple, perhaps of a class with names for its items, or a frozenset."""
        if type(object) not in (tuple, frozenset):
            if not hasattr(type(object), "_fields") or hasattr(object, "__dict__"):
                raise CannotPlan(f"{said} is of the class {_class_of(object)}", place)
            self._read_class(type(object), said, place)
        for i, item in enumerate(object):
            self._look(item, f"{said}[{i}]", place)

    def _look_at_object(self, object: Any, said: str, place: str) -> None:
        """An object of a class of the program's, with a dictionary and nothing else."""
        cls = type(object)
        if cls is functools.partial:
            self._bind_parts(object, _OF_PARTIALS)
            for name in _OF_PARTIALS:
                self._look(getattr(object, name), said, place)
            return
        is_enum = isinstance(object, enum.Enum)
        if cls.__module__ == "typing":
            return
        if not (is_enum or cls is SimpleNamespace or _is_plain_class(cls)):
            raise CannotPlan(f"{said} is of the class {_class_of(object)}", place)
        held = vars(object)
        of_class = self._read_class(cls, said, place)
        self._bind(object, "__class__")  # no attribute of its own: it stays what it is
        for name in self._names:
            if name in held:
                self._bind(object, name, held[name])
                self._look(held[name], f"{said}.{name}", place)
            elif name in of_class:
                self._bind(object, name)

    def _look_at_class(self, cls: type, said: str, place: str) -> None:
        if trusted.is_class(cls) or cls.__module__ == "typing":
            return
        if trusted.is_of_torch(cls.__module__):
            return  # whose functions are seen when they run
        if cls.__module__ == "collections.abc":
            return
        if not _is_pythons(cls) or not _has_plain_bases(cls):
            raise CannotPlan(f"{said} is a class that is not plain", place)
        self._read_class(cls, said, place)

    def _read_class(self, cls: type, said: str, place: str) -> set[str]:
        """What the names mean to a class of the program's; those that mean anything."""
        if cls in self._meanings:
            return self._meanings[cls]
        found = self._meanings[cls] = set[str]()
        self._add_class(cls)
        for base in cls.__mro__:
            if (
                base is object
                or base is nn.Module
                or trusted.is_of_torch(base.__module__)
            ):
                continue
            for name, value in list(vars(base).items()):
                self._register_all(value)
                if name in self._names:
                    found.add(name)
                    self._look_at_item(value, f"{said}.{name}", place)
        return found

    def _register_all(self, value: Any) -> None:
        """Functions that a class has under a name."""
        for function in _functions_in(value):
            self._register(function)

    def _look_at_item(self, value: Any, said: str, place: str) -> None:
        """What a class has under a name that is asked for."""
        if any(True for _ in _functions_in(value)) or type(value) in _OF_C:
            return  # seen when they run
        if hasattr(type(value), "__get__"):
            kind = type(value)
            if kind.__module__ in ("enum", "types") or kind is _TUPLE_GETTER:
                return
            raise CannotPlan(f"{said} is computed by a {kind.__name__}", place)
        self._look(value, said, place)

    # --- modules

    def _add_module(self, module: nn.Module) -> None:
        for one in module.modules():
            if id(one) not in self._known:
                self._known.add(id(one))
                self.modules.append(one)
                if len(self.modules) > MOST_BINDINGS:
                    raise CannotPlan("it reads more modules than are compared")

    def _read_modules(self) -> None:
        while self._n_read < len(self.modules):
            self._n_read += 1
            self._read_module(self.modules[self._n_read - 1])

    def _read_module(self, module: nn.Module) -> None:
        kind = type(module).__name__
        held = vars(module)
        by_name = self._observed.asks_by_name
        self._seen.add(id(module))
        for name, value in held.items():
            is_asked = name in self._names or by_name
            if name in _OF_MODULES:
                continue
            if is_asked or (name in self._torchs_names and _is_setting(value)):
                place = self._names.get(name, "")
                self._look(value, f"{kind}.{name}", place)
        for home in ("_parameters", "_buffers"):
            self._read_tensors(held[home], kind)
        cls = type(module)
        if not trusted.is_of_torch(cls.__module__):
            self._read_class(cls, kind, "")
        if "forward" in held:
            self._look(held["forward"], f"{kind}.forward", "")

    def _read_tensors(self, home: dict[str, Any], kind: str) -> None:
        """Those that no operator reads may still be asked for their sizes."""
        asks_all = not self._names.keys().isdisjoint(_ALL_TENSORS)
        asks_all |= self._observed.asks_by_name or kind in _OF_TENSORS
        for name, tensor in home.items():
            if not asks_all and name not in self._names:
                continue
            if tensor is not None:
                self._look_at_tensor(
                    tensor, f"{kind}.{name}", self._names.get(name, "")
                )
            if id(tensor) not in self._used:
                self._bind(home, name, tensor)

    # --- containers

    def _check_written(self) -> None:
        """Of all that was changed by a method, nothing lives on."""
        for identity, (what, place) in self._observed.written.items():
            if identity in self._seen:
                kind = "a container that outlives the call"
                raise CannotPlan(f"{what} {kind}", place)


_OF_TENSORS = frozenset({"ParameterList", "ParameterDict"})
"""Modules that are asked for their tensors by number, or by key."""

_TUPLE_GETTER = type(vars(namedtuple("One", "item"))["item"])
"""What gives a named tuple's items."""


def _is_setting(value: Any) -> bool:
    """A list of numbers, say, which a layer of torch's may be told of."""
    return type(value) is list and all(type(item) in _CONSTANTS for item in value)


def _functions_in(value: Any) -> Iterator[Any]:
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    if isinstance(value, property):
        for function in (value.fget, value.fset):
            if function is not None:
                yield function
    elif isinstance(value, FunctionType):
        yield value


def _within(code: CodeType) -> Iterator[CodeType]:
    """Functions that a function makes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _within(constant)


def _is_pythons(cls: type) -> bool:
    """It is defined in Python: calling it calls functions that are seen."""
    home = sys.modules.get(cls.__module__)
    file = getattr(home, "__file__", None) or ""
    is_of_source = cls.__module__ == "__main__" or file.endswith((".py", ".pyc"))
    is_heap_type = bool(cls.__flags__ & _HEAP_TYPE)
    return is_heap_type and is_of_source and not _is_of_c(cls)


def _is_of_c(cls: type) -> bool:
    """It has functions of C of its own, whatever module it is said to be of."""
    return any(
        getattr(value, "__objclass__", None) is cls
        or (type(value) is BuiltinFunctionType and value.__self__ is cls)
        for value in vars(cls).values()
        if type(value) in _OF_C
    )


def _has_plain_bases(cls: type) -> bool:
    """Its bases are Python's, or such whose objects are under guard."""
    if type(cls) not in (type, enum.EnumMeta):
        return issubclass(cls, nn.Module)
    return all(
        base is object or _is_pythons(base) or trusted.is_class(base)
        for base in cls.__mro__
    )


def _is_plain_class(cls: type) -> bool:
    """Its objects have a dictionary, and nothing else that could change."""
    if type(cls) is not type or cls.__basicsize__ > _LARGEST or cls.__itemsize__:
        return False
    bases = [base for base in cls.__mro__ if base is not object]
    if not all(base.__flags__ & _HEAP_TYPE for base in bases):
        return False
    names = {name for base in bases for name in vars(base)}
    return (
        "__dict__" in names
        and names.isdisjoint({"__slots__", "__getattr__", "__getattribute__"})
        and cls.__new__ is object.__new__
    )


def _class_of(object: Any) -> str:
    return type(object).__qualname__


def _id_of_home(binding: Binding) -> int:
    return id(binding[0])


def _identities(binding: Binding) -> Any:
    home, name, *object = binding
    return id(home), name, *map(id, object)
