"""What Python executes while a call is recorded: functions, and calls of C.

The recorder's profile function tells. It is told of each Python function that begins,
and of each function of C that Python code calls; not of classes that are called, nor
of what operators and iterators call: ``reading`` looks at what of that kind a function
can get hold of.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import CodeType, FrameType, TracebackType
from typing import Any

from torch import nn

from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.unedited import trusted
from pai_torchacc.graph.unedited.instructions import asked_of, scan

_WRITERS = {
    "append": "appends to",
    "extend": "extends",
    "insert": "inserts into",
    "pop": "takes from",
    "popitem": "takes from",
    "remove": "removes from",
    "clear": "clears",
    "sort": "sorts",
    "reverse": "reverses",
    "add": "adds to",
    "discard": "removes from",
    "update": "updates",
    "setdefault": "adds to",
    "move_to_end": "sorts",
}
"""Methods of containers by which they change."""

Names = tuple[dict[str, Any], dict[str, Any]]
"""Where a function finds global names: its own, and Python's."""


@dataclass
class Observed:
    """What a call has executed."""

    program: list[tuple[CodeType, Names]] = field(default_factory=list)
    """The program's functions."""
    torchs: list[tuple[CodeType, Names]] = field(default_factory=list)
    """Those of torch whose names somebody may have given another meaning."""
    written: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Containers, by ``id()``, of which a method was called that changes them; what it
    does, and where. Of those that the call has made, the number may be another's."""
    asks_by_name: bool = False
    """``getattr()`` or the like was called of a module."""
    refusal: CannotPlan | None = None
    """The first thing that is not plain."""


class Observer:
    """Takes the recorder's events."""

    def __init__(self) -> None:
        self.found = Observed()
        self._is_programs: dict[tuple[int, int], bool] = {}
        self._kept: list[CodeType] = []
        """Codes, by whose identity functions are told: equal ones may differ."""

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        """Look at an event of the interpreter's; raise nothing."""
        if self.found.refusal is not None:
            return
        try:
            if event == "call":
                if self._begin(frame):
                    _check_given(frame)
                    _check_compared(frame)
            elif event == "c_call" and self._is_of_program(frame):
                self._call(frame, called)
        except CannotPlan as refusal:
            self.found.refusal = refusal.with_traceback(None)
        except Exception as error:  # objects of kinds that we do not know
            self.found.refusal = CannotPlan(f"it cannot be observed: {error!r}")

    def check(self, modules: list[nn.Module]) -> None:
        """Raise :class:`CannotPlan` where the call has done what is not plain.

        Also where it has changed a container that one of these modules has.
        """
        if self.found.refusal is not None:
            raise self.found.refusal
        for module in modules:
            for value in vars(module).values():
                if id(value) in self.found.written:
                    what, place = self.found.written[id(value)]
                    kind = type(value).__name__
                    raise CannotPlan(f"{what} a {kind} of the module's", place)

    def _is_of_program(self, frame: FrameType) -> bool:
        known = self._is_programs.get(_key_of(frame))
        return self._begin(frame) if known is None else known

    def _begin(self, frame: FrameType) -> bool:
        code, key = frame.f_code, _key_of(frame)
        if (known := self._is_programs.get(key)) is not None:
            return known
        names = frame.f_globals, frame.f_builtins
        if trusted.is_trusted(code):
            self._know(key, code, False)
            if trusted.reads_settings(code):
                self.found.torchs.append((code, names))
            return False
        if trusted.is_of_recorder(frame):
            return False
        if library := trusted.library_of(code):
            text = f"{library}'s own {code.co_qualname}() is called"
            refusal = CannotPlan(text, _outside(frame))
            refusal.is_of_first = True  # it may be the callback of what has just gone
            raise refusal
        if (found := scan(code).refusal) is not None:
            why, line = found
            raise CannotPlan(f"{code.co_name} {why}", f"{code.co_filename}:{line}")
        self._know(key, code, True)
        self.found.program.append((code, names))
        return True

    def _know(self, key: tuple[int, int], code: CodeType, is_programs: bool) -> None:
        self._is_programs[key] = is_programs
        self._kept.append(code)

    def _call(self, frame: FrameType, called: Any) -> None:
        name = called.__name__
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if not trusted.may_call(called):
            raise CannotPlan(f"{_name_of(called)}() is called", place)
        owner = getattr(called, "__self__", None)
        if name in ("getattr", "hasattr") and called in (getattr, hasattr):
            self._ask(frame, name, place)
        elif name in _WRITERS and isinstance(owner, trusted.CONTAINERS):
            self.found.written.setdefault(id(owner), (_WRITERS[name], place))

    def _ask(self, frame: FrameType, name: str, place: str) -> None:
        local = asked_of(frame.f_code, frame.f_lasti, name)
        if local is None or not isinstance(frame.f_locals.get(local), nn.Module):
            raise CannotPlan(f"{name}() asks what is no module", place)
        self.found.asks_by_name = True


def _check_given(frame: FrameType) -> None:
    """Refuse what is told of an exception, which it may silence: an ``__exit__``."""
    for value in frame.f_locals.values():
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, BaseException | TracebackType):
                place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                raise CannotPlan(f"{frame.f_code.co_name} catches exceptions", place)


def _check_compared(frame: FrameType) -> None:
    """Refuse comparing with what is no submodule; those are no arguments."""
    code = frame.f_code
    for name, line in scan(code).compared.items():
        owner = frame.f_locals.get(code.co_varnames[0])
        is_module = isinstance(owner, nn.Module) and not (
            name in vars(owner) or hasattr(type(owner), name)
        )
        if not (is_module and isinstance(vars(owner)["_modules"].get(name), nn.Module)):
            text = f"{code.co_name} asks whether two objects are one"
            raise CannotPlan(text, f"{code.co_filename}:{line}")


def _key_of(frame: FrameType) -> tuple[int, int]:
    return id(frame.f_code), id(frame.f_globals)


def _outside(frame: FrameType) -> str:
    """Where the program, or else torch, called a library's function."""
    inner: FrameType | None = frame
    while inner is not None and trusted.library_of(inner.f_code):
        inner = inner.f_back
    return f"{inner.f_code.co_filename}:{inner.f_lineno}" if inner else ""


def _name_of(function: Any) -> str:
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or getattr(owner, "__name__", None)
    qualname = getattr(function, "__qualname__", function.__name__)
    return f"{module}.{qualname}" if module and module != "builtins" else qualname
