"""What a function of the program does with the result of a call: its bytecode, read.

From the instruction that calls a module on, instructions are followed as far as all
they do is known: the result is stored and loaded, and modules or functions are looked
up and called with nothing else. Each such call is a step. It is told of each where what
it calls is found, and whether what it is called with is gone for the program once its
own result is there.

Written for CPython 3.11; others have other instructions, and none of their functions is
read.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator
from types import CodeType
from typing import NamedTuple

from pai_torchacc.fusion.sites import reading
from pai_torchacc.fusion.sites.reading import Code

VERSION = (3, 11)
"""Of CPython, whose instructions these are."""

MOST_STEPS = 6
ON_STACK, IN_LOCAL, IN_GLOBAL, NUMBER = range(4)
OPERATORS = {"+": (0, 4), "-": (1, None), "*": (2, 5), "/": (3, None)}
"""The extension's code of ``product + number``, and of ``number + product``."""

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Step(NamedTuple):
    """A call: offsets of its instructions, where its callee is found, and the rest.

    ``slot`` is the frame's, of a variable or of the stack; ``name`` that of a global.
    ``path`` are attributes of what is there. ``dies``: nobody has the argument once the
    result is there. ``has_setting``: another argument says whether it is done
    ``in_place``. Of an operator with a number ``slot`` is its code, and ``name`` the
    number.
    """

    begin: int
    end: int
    base: int
    slot: int
    name: str | float | None
    path: tuple[str, ...]
    dies: bool
    has_setting: bool
    in_place: bool


class Plan(NamedTuple):
    """What follows the call or operator at an offset of a function, on a line.

    ``slot`` is the frame's slot where its result goes. What it is made of lies from
    there on: NULL, what is called, and arguments; or both sides of an operator.
    """

    offset: int
    slot: int
    is_operator: bool
    line: int
    steps: list[Step]


class _Source(NamedTuple):
    """Something that is looked up, as in :class:`Step`."""

    base: int
    slot: int
    name: str | None
    path: tuple[str, ...] = ()

    def attribute(self, name: str) -> _Source:
        return self._replace(path=(*self.path, name))


class _Null:
    """CPython's NULL, in front of a callable that is no method."""


class _Constant(NamedTuple):
    value: object


class _Product:
    """The result of the call, or of the step that was last."""


_NULL, _PRODUCT = _Null(), _Product()
_Symbol = _Source | _Null | _Constant | _Product


def plans(code: CodeType) -> list[Plan]:
    """Tell what follows each call or operator of ``code`` that something follows.

    And those that follow one, which may be told something of what they are called with.
    """
    if sys.version_info[:2] != VERSION or code.co_flags & _SUSPENDED:
        return []
    read = reading.read(code)
    n = len(read.instructions)
    made = {at: p for at in range(1, n) if (p := _plan(read, at))}
    following = {step.end for p in made.values() for step in p.steps}
    return [
        p
        for at, p in made.items()
        if p.steps or read.instructions[at + 1].offset in following
    ]


def _plan(read: Code, at: int) -> Plan | None:
    before, made = read.instructions[at - 1], read.instructions[at]
    if made.opname == "BINARY_OP":
        depth, taken = read.depths.get(made.offset), 2
    elif (before.opname, made.opname) == ("PRECALL", "CALL"):
        depth, taken = read.depths.get(before.offset), _number(made.arg) + 2
    else:
        return None
    if depth is None or read.instructions[at - 2].opname == "KW_NAMES":
        return None
    slot = read.n_variables + depth - taken
    line = made.positions.lineno if made.positions else None
    steps = list(_Run(read, at + 1, slot).steps())[:MOST_STEPS]
    return Plan(made.offset, slot, made.opname == "BINARY_OP", line or 0, steps)


class _Run:
    """Instructions from a call's result on, followed by what they put where."""

    def __init__(self, read: Code, at: int, slot: int) -> None:
        """Begin behind the call, whose result lies in the slot."""
        self._read = read
        self._at = at
        self._floor = slot  # below it lies what was there before
        self._stack: list[_Symbol] = [_PRODUCT]
        self._holders: set[int] = set()  # variables that have the product
        self._names: tuple[str, ...] = ()

    def steps(self) -> Iterator[Step]:
        """Give steps as long as everything about them is known."""
        begin = 0
        while (i := self._next()) is not None:
            if i.opname == "PRECALL":
                begin = i.offset
            elif i.opname == "CALL":
                step = self._call(i, begin)
                if step is None:
                    return
                yield step
                if not step.dies:
                    return
            elif i.opname == "BINARY_OP":
                step = self._operator(i)
                if step is None:
                    return
                yield step
            elif not self._follow(i):
                return

    def _next(self) -> dis.Instruction | None:
        if self._at == len(self._read.instructions):
            return None
        i = self._read.instructions[self._at]
        self._at += 1
        return None if i.is_jump_target else i

    def _follow(self, i: dis.Instruction) -> bool:
        """Do what an instruction does that only moves things; False: it does more."""
        stack = self._stack
        match i.opname:
            case "NOP" | "EXTENDED_ARG":
                pass
            case "LOAD_FAST":
                is_product = i.arg in self._holders
                stack.append(_PRODUCT if is_product else _local(i.arg))
            case "STORE_FAST":
                if stack != [_PRODUCT]:
                    return False
                stack.pop()
                self._holders.add(_number(i.arg))
            case "LOAD_CONST":
                stack.append(_Constant(i.argval))
            case "PUSH_NULL":
                stack.append(_NULL)
            case "LOAD_GLOBAL":
                stack.extend([_NULL] * (_number(i.arg) & 1))
                stack.append(_Source(IN_GLOBAL, 0, i.argval))
            case "LOAD_METHOD" | "LOAD_ATTR":
                owner = stack.pop() if stack else None
                if not isinstance(owner, _Source):
                    return False
                stack.extend([_NULL] * (i.opname == "LOAD_METHOD"))
                stack.append(owner.attribute(i.argval))
            case "KW_NAMES":
                self._names = self._read.constants[_number(i.arg)]
            case _:
                return False
        return True

    def _call(self, i: dis.Instruction, begin: int) -> Step | None:
        """Read a call of the product, and maybe of ``inplace``."""
        n = _number(i.arg)
        settings = self._stack[len(self._stack) - n + 1 :] if n > 1 else []
        if not 1 <= n <= len(self._stack) or self._stack[-n] is not _PRODUCT:
            return None
        in_place = _in_place(settings, self._names)
        del self._stack[len(self._stack) - n :]
        source = self._callee()
        if in_place is None or source is None or self._stack or not begin:
            return None
        self._stack.append(_PRODUCT)
        self._names = ()
        end = self._read.instructions[self._at].offset
        return Step(begin, end, *source, self._is_gone(), n > 1, in_place)

    def _operator(self, i: dis.Instruction) -> Step | None:
        """Read an operator between the product, which dies, and a number."""
        codes = OPERATORS.get(i.argrepr)
        match self._stack:
            case [_Product(), _Constant(number)]:
                is_turned = False
            case [_Constant(number), _Product()]:
                is_turned = True
            case _:
                return None
        code = codes[is_turned] if codes else None
        if type(number) not in (int, float) or code is None:
            return None
        self._stack = [_PRODUCT]
        end = self._read.instructions[self._at].offset
        if not self._is_gone():
            return None
        return Step(i.offset, end, NUMBER, code, number, (), True, False, False)

    def _callee(self) -> _Source | None:
        """Take what is called from the stack."""
        if not self._stack:  # all the steps' own is gone: it lay there before
            slot = self._floor - 1
            self._floor -= 2
            return _Source(ON_STACK, slot, None)
        callee = self._stack.pop()
        is_plain = self._stack and self._stack.pop() is _NULL
        return callee if is_plain and isinstance(callee, _Source) else None

    def _is_gone(self) -> bool:
        """Whether the argument has no holder once the result is where it goes."""
        i = self._read.instructions[self._at]
        if not self._holders or (i.opname == "RETURN_VALUE" and not i.is_jump_target):
            return True
        if (
            i.opname != "STORE_FAST"
            or i.is_jump_target
            or self._holders != {_number(i.arg)}
        ):
            return False
        self._holders.clear()  # for now: the store comes next
        return True


def _number(arg: int | None) -> int:
    return arg or 0


def _local(arg: int | None) -> _Source:
    return _Source(IN_LOCAL, _number(arg), None)


def _in_place(settings: list[_Symbol], names: tuple[str, ...]) -> bool | None:
    """What arguments behind the tensor say; None: something else."""
    if not settings:
        return None if names else False
    first = settings[0]
    if (
        len(settings) > 1
        or names not in ((), ("inplace",))
        or not isinstance(first, _Constant)
        or not isinstance(first.value, bool)
    ):
        return None
    return first.value
