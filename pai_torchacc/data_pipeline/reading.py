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
        lines, _ = inspect.findsource(function)
    except (OSError, TypeError):
        return None
    own = _own_part(lines, code.co_firstlineno - 1)
    return _definition_in(own, code) or _definition_in(lines, code)


def _own_part(lines: list[str], at: int) -> list[str]:
    """The lines with nothing but imports and the statement that a line belongs to.

    In most files that will do, and takes a fraction of the time. How a name is called
    depends on whether it was imported.
    """
    begins = [
        i
        for i, line in enumerate(lines)
        if line[:1].isalpha() or line.startswith(("_", "@"))
    ]
    begin = max((i for i in begins if i <= at), default=0)
    end = min((i for i in begins if i > at), default=len(lines))
    own, is_open = [], False
    for line in lines[:begin]:
        is_import = line.startswith(("import ", "from "))
        own.append(line if is_import or is_open else "\n")
        is_open = (is_open or (is_import and "(" in line)) and ")" not in line
    return own + lines[begin:end]


def _definition_in(lines: list[str], code: CodeType) -> ast.FunctionDef | None:
    """The function of these lines that compiles to the code, if there is one."""
    try:
        tree = ast.parse("".join(lines))
        compiled = compile(tree, code.co_filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
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
