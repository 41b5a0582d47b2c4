"""The source of a dataset's ``__getitem__``, proved to be what runs.

The file may be gone, or may have changed since it was compiled: it is compiled again
and the bytecode compared. A function whose code differs in anything is not read.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType

_found: dict[CodeType, ast.FunctionDef | None] = {}


def definition_of(function: FunctionType) -> ast.FunctionDef | None:
    """The syntax tree of a function, or None where it cannot be had for certain."""
    code = function.__code__
    if code not in _found:
        _found[code] = _read(function)
    return _found[code]


def class_of(function: FunctionType) -> str:
    """The name of the class in whose body a function stands, for its private names."""
    names = function.__qualname__.split(".")
    return names[-2] if len(names) > 1 else ""


def _read(function: FunctionType) -> ast.FunctionDef | None:
    code = function.__code__
    if function.__closure__ or hasattr(function, "__wrapped__"):
        return None
    try:
        # All of the file: how a name is called depends on how it came in.
        lines, _ = inspect.findsource(function)
        tree = ast.parse("".join(lines))
        compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (OSError, TypeError, SyntaxError, ValueError):
        return None
    if not any(_is_same(inner, code) for inner in _codes(compiled)):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno == code.co_firstlineno:
            return node if not node.decorator_list else None
    return None


def _codes(outer: CodeType) -> Iterator[CodeType]:
    for constant in outer.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _is_same(one: CodeType, other: CodeType) -> bool:
    return (
        one.co_qualname == other.co_qualname
        and one.co_firstlineno == other.co_firstlineno
        and one.co_code == other.co_code
        and one.co_names == other.co_names
        and one.co_varnames == other.co_varnames
        and one.co_freevars == other.co_freevars
        and one.co_argcount == other.co_argcount
        and one.co_kwonlyargcount == other.co_kwonlyargcount
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_is_same_constant, one.co_consts, other.co_consts))
    )


def _is_same_constant(one: object, other: object) -> bool:
    if isinstance(one, CodeType):
        return isinstance(other, CodeType) and _is_same(one, other)
    return type(one) is type(other) and repr(one) == repr(other)
