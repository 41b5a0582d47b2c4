"""Which of CPython's instructions a function may consist of, and what they name.

Those that are on the list compute with what they are given, or change what can be seen
to have changed. Others set attributes and names that outlive the call, import, wait, or
are of a version of Python that nobody has looked at.
"""

from __future__ import annotations

import dis
import functools
import sys
from dataclasses import dataclass, field
from types import CodeType
from typing import Any


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


_OF_ALL = words("""
    BEFORE_WITH BINARY_OP BINARY_SUBSCR BUILD_CONST_KEY_MAP BUILD_LIST BUILD_MAP
    BUILD_SET BUILD_SLICE BUILD_STRING BUILD_TUPLE CACHE CALL CALL_FUNCTION_EX
    COMPARE_OP CONTAINS_OP COPY COPY_FREE_VARS DELETE_FAST DELETE_SUBSCR DICT_MERGE
    DICT_UPDATE EXTENDED_ARG FOR_ITER GET_ITER GET_YIELD_FROM_ITER IS_OP JUMP_BACKWARD
    JUMP_BACKWARD_NO_INTERRUPT JUMP_FORWARD LIST_APPEND LIST_EXTEND
    LOAD_ASSERTION_ERROR LOAD_ATTR LOAD_CLOSURE LOAD_CONST LOAD_DEREF LOAD_FAST
    LOAD_GLOBAL MAKE_CELL MAKE_FUNCTION MAP_ADD NOP POP_EXCEPT POP_TOP PUSH_EXC_INFO
    PUSH_NULL RAISE_VARARGS RERAISE RESUME RETURN_GENERATOR RETURN_VALUE SEND SET_ADD
    SET_UPDATE STORE_FAST STORE_SUBSCR SWAP UNARY_INVERT UNARY_NEGATIVE UNARY_NOT
    UNPACK_EX UNPACK_SEQUENCE WITH_EXCEPT_START YIELD_VALUE
    """)

_SINCE_3_12 = words("""
    BINARY_SLICE CLEANUP_THROW END_FOR END_SEND JUMP_NO_INTERRUPT LOAD_FAST_AND_CLEAR
    LOAD_FAST_CHECK LOAD_SUPER_ATTR POP_JUMP_IF_FALSE POP_JUMP_IF_NONE
    POP_JUMP_IF_NOT_NONE POP_JUMP_IF_TRUE RETURN_CONST STORE_SLICE
    """)

_ACCEPTED = {
    (3, 11): _OF_ALL
    | words("""
        FORMAT_VALUE JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP KW_NAMES LIST_TO_TUPLE
        LOAD_METHOD POP_JUMP_BACKWARD_IF_FALSE POP_JUMP_BACKWARD_IF_NONE
        POP_JUMP_BACKWARD_IF_NOT_NONE POP_JUMP_BACKWARD_IF_TRUE
        POP_JUMP_FORWARD_IF_FALSE POP_JUMP_FORWARD_IF_NONE
        POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_FORWARD_IF_TRUE PRECALL UNARY_POSITIVE
    """),
    (3, 12): _OF_ALL | _SINCE_3_12 | {"FORMAT_VALUE", "KW_NAMES"},
    (3, 13): _OF_ALL
    | _SINCE_3_12
    | words("""
        CALL_KW CONVERT_VALUE FORMAT_SIMPLE FORMAT_WITH_SPEC LOAD_FAST_LOAD_FAST
        SET_FUNCTION_ATTRIBUTE STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST TO_BOOL
    """),
}

_INTRINSICS = frozenset(
    {
        "INTRINSIC_LIST_TO_TUPLE",
        "INTRINSIC_UNARY_POSITIVE",
        "INTRINSIC_STOPITERATION_ERROR",
    }
)
"""Of ``CALL_INTRINSIC_1``, which Python has since 3.12."""

_OF_CELLS = frozenset({"STORE_DEREF", "DELETE_DEREF"})
"""Accepted for variables of the function's own."""

_ATTRIBUTES = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"})

_WHY = {
    "STORE_ATTR": "sets the attribute {}",
    "DELETE_ATTR": "deletes the attribute {}",
    "STORE_GLOBAL": "sets the global name {}",
    "DELETE_GLOBAL": "deletes the global name {}",
    "STORE_DEREF": "sets {}, a variable of an enclosing function",
    "DELETE_DEREF": "deletes {}, a variable of an enclosing function",
    "IMPORT_NAME": "imports {}",
    "PUSH_EXC_INFO": "catches exceptions",
    "CHECK_EXC_MATCH": "catches exceptions",
    "CHECK_EG_MATCH": "catches exceptions",
    "LOAD_BUILD_CLASS": "defines a class",
}
"""Instructions that are refused, in words."""

_REFUSED_NAMES = {
    **dict.fromkeys(
        words(
            "requires_grad is_leaf grad_fn grad _version _base output_nr retains_grad"
            " _backward_hooks _post_accumulate_grad_hooks"
        ),
        "asks what autograd knows of a tensor ({})",
    ),
    **dict.fromkeys(
        words(
            "data_ptr storage_offset storage untyped_storage _cdata is_shared is_pinned"
            " is_inference is_inference_mode_enabled"
        ),
        "asks for {}, which plans do not compare",
    ),
}

_DUNDERS = words("""
    __class__ __name__ __qualname__ __module__ __init__ __new__ __len__ __getitem__
    __setitem__ __iter__ __next__ __call__ __enter__ __exit__ __version__ __eq__
    __contains__
    """)
"""Attributes of Python's own that may be asked for by name."""

_UNMODULE = words("""
    _forward_hooks _forward_pre_hooks _backward_hooks _backward_pre_hooks
    _state_dict_hooks _load_state_dict_pre_hooks _compiled_call_impl
    _non_persistent_buffers_set
    """)


@dataclass
class Scan:
    """What a function consists of."""

    refusal: tuple[str, int] | None = None
    """Why it may not run unseen, and the line."""
    chains: dict[tuple[str, ...], int] = field(default_factory=dict)
    """Global names with the attributes that are asked of them, and the line."""
    cells: dict[tuple[str, ...], int] = field(default_factory=dict)
    """The same of variables of enclosing functions."""
    handed: set[tuple[str, ...]] = field(default_factory=set)
    """Of both: what is not called there and then."""
    attributes: dict[str, int] = field(default_factory=dict)
    """All attributes, and a line of each."""
    compared: dict[str, int] = field(default_factory=dict)
    """Attributes of the first argument by whose identity something is told."""


@functools.lru_cache(maxsize=4096)
def scan(code: CodeType) -> Scan:
    """Look at a function's instructions, once."""
    found = Scan()
    accepted = _ACCEPTED.get(sys.version_info[:2], frozenset())
    chain: tuple[str, ...] = ()
    home: dict[tuple[str, ...], int] = {}
    line, is_called = code.co_firstlineno, False
    behind: tuple[dis.Instruction | None, ...] = (None, None)
    for one in dis.get_instructions(code):
        why = _why_not(code, one, accepted) or _why_not_behind(found, code, behind, one)
        if found.refusal is None and why:
            found.refusal = why, line
        if one.opname != "EXTENDED_ARG":
            behind = (behind[1], one)
        line = (one.positions.lineno if one.positions else None) or line
        name = one.opname
        if name in _ATTRIBUTES:
            found.attributes.setdefault(one.argval, line)
            is_format = one.argval.startswith("format") and one.argval in _NOT_HANDED
            if found.refusal is None and is_format and not _is_called(one):
                found.refusal = f"hands {one.argval} to others", line
            if chain and name != "LOAD_SUPER_ATTR":
                chain = (*chain, one.argval)
                is_called = is_called or _is_called(one)
                continue
        if chain:
            home.setdefault(chain, line)
            if not is_called and name != "PUSH_NULL":
                found.handed.add(chain)
                if found.refusal is None and chain[-1] in _NOT_HANDED:
                    found.refusal = f"hands {chain[-1]} to others", line
            chain = ()
        if name == "LOAD_GLOBAL":
            chain, home, is_called = (one.argval,), found.chains, _is_called(one)
        elif name == "LOAD_DEREF" and one.argval in code.co_freevars:
            chain, home, is_called = (one.argval,), found.cells, False
    return found


def _why_not_behind(
    found: Scan,
    code: CodeType,
    behind: tuple[dis.Instruction | None, ...],
    one: dis.Instruction,
) -> str | None:
    """What is refused for the two instructions that go before it."""
    before = behind[1]
    is_caught = before is not None and before.opname == "PUSH_EXC_INFO"
    if is_caught and one.opname != "WITH_EXCEPT_START":
        return _WHY["PUSH_EXC_INFO"]
    if one.opname != "IS_OP" or (_is_single(before) and not one.is_jump_target):
        return None
    if before is not None and not one.is_jump_target and _is_of_first(code, *behind):
        line = (one.positions.lineno if one.positions else None) or 0
        found.compared.setdefault(before.argval, line)
        return None
    return "asks whether two objects are one"


def _is_of_first(
    code: CodeType, object: dis.Instruction | None, one: dis.Instruction | None
) -> bool:
    """It loads an attribute of the first argument, which stays what it was."""
    if object is None or one is None or one.opname != "LOAD_ATTR":
        return False
    first = code.co_varnames[0] if code.co_argcount else ""
    loaded = object.argval if isinstance(object.argval, tuple) else (object.argval,)
    is_loaded = object.opname.startswith("LOAD_FAST") and loaded[-1] == first
    return (
        is_loaded
        and not one.is_jump_target
        and not any(
            other.opname.startswith(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND"))
            and first
            in (other.argval if type(other.argval) is tuple else (other.argval,))
            for other in dis.get_instructions(code)
        )
    )


def _is_single(one: dis.Instruction | None) -> bool:
    """It loads an object of which there is one; others may be one or another."""
    return (
        one is not None
        and one.opname == "LOAD_CONST"
        and (one.argval is None or type(one.argval) in (bool, type(Ellipsis)))
    )


def _is_called(one: dis.Instruction) -> bool:
    """What is loaded is called, with the arguments that follow."""
    return one.opname == "LOAD_METHOD" or "NULL" in one.argrepr.replace(
        one.argval, "", 1
    )


def _why_not(
    code: CodeType, one: dis.Instruction, accepted: frozenset[str]
) -> str | None:
    name = one.opname
    if name in _ATTRIBUTES:
        return _why_not_named(str(one.argval))
    if name in accepted:
        return None
    if name in _OF_CELLS and accepted and one.argval in code.co_cellvars:
        return None
    if name == "CALL_INTRINSIC_1" and accepted and one.argrepr in _INTRINSICS:
        return None
    if not accepted:
        return "runs on a Python whose instructions are not known"
    return _WHY.get(name, f"has the instruction {name}").format(one.argval)


def _why_not_named(name: str) -> str | None:
    if name in _REFUSED_NAMES:
        return _REFUSED_NAMES[name].format(name)
    is_own = name.startswith("__") and name.endswith("__")
    if (is_own and name not in _DUNDERS) or name in _UNMODULE:
        return f"asks for {name}"
    return None


def asked_of(code: CodeType, at: int, function: str) -> str | None:
    """The local variable that is the first argument of a call of a builtin function.

    ``at`` is the call's place in the code. None: it is not plainly one.
    """
    before = [one for one in dis.get_instructions(code) if one.offset < at]
    for i in reversed(range(len(before))):
        if before[i].opname == "LOAD_GLOBAL" and before[i].argval == function:
            behind = [one for one in before[i + 1 :] if one.opname != "PUSH_NULL"]
            are_plain = all(one.opname.startswith(_PLAIN_LOADS) for one in behind)
            return _local(behind[0]) if behind and are_plain else None
    return None


_PLAIN_LOADS = (
    *("LOAD_FAST", "LOAD_CONST", "FORMAT_", "CONVERT_VALUE", "BUILD_STRING"),
    *("BINARY_OP", "PRECALL", "KW_NAMES", "COPY_FREE_VARS"),
)
"""Instructions of arguments in which nothing else is asked for or called."""

_NOT_HANDED = frozenset({"getattr", "hasattr", "next", "format", "format_map"})
"""Functions that are called there and then, or nobody knows what they ask of whom."""


def _local(one: dis.Instruction) -> str | None:
    if not one.opname.startswith("LOAD_FAST"):
        return None
    names: Any = one.argval
    return str(names[0] if isinstance(names, tuple) else names)
