"""Bytecode of a function of the program, and how much lies on the stack where.

Written for CPython 3.11.
"""

from __future__ import annotations

import dis
from types import CodeType
from typing import Any, NamedTuple

_ENDS = frozenset({"RETURN_VALUE", "RAISE_VARARGS", "RERAISE"})
_JUMPS = frozenset({"JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"})


class Code(NamedTuple):
    """A function: where ``depths`` has no offset, nothing is reached but by an error.

    Before the stack a frame has ``n_variables`` slots.
    """

    instructions: tuple[dis.Instruction, ...]
    depths: dict[int, int]
    n_variables: int
    constants: tuple[Any, ...]


def read(code: CodeType) -> Code:
    """Read a function."""
    instructions = tuple(dis.get_instructions(code))
    cells = set(code.co_cellvars) - set(code.co_varnames)
    n_variables = code.co_nlocals + len(cells) + len(code.co_freevars)
    return Code(instructions, _depths(instructions), n_variables, code.co_consts)


def _depths(instructions: tuple[dis.Instruction, ...]) -> dict[int, int]:
    """How much lies on the stack before each instruction that is reached by itself.

    Of a CALL it is less: PRECALL is said to take the arguments.
    """
    index = {i.offset: k for k, i in enumerate(instructions)}
    depths: dict[int, int] = {}
    waiting = [(0, 0)]
    while waiting:
        at, depth = waiting.pop()
        while at < len(instructions):
            i = instructions[at]
            if i.offset in depths:
                break
            depths[i.offset] = depth
            if i.opcode in dis.hasjrel or i.opcode in dis.hasjabs:
                after = dis.stack_effect(i.opcode, i.arg, jump=True)
                waiting.append((index[i.argval], depth + after))
            if i.opname in _ENDS or i.opname in _JUMPS:
                break
            arg = i.arg if i.opcode >= dis.HAVE_ARGUMENT else None
            depth += dis.stack_effect(i.opcode, arg, jump=False)
            at += 1
    return depths
