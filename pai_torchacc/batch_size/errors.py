"""Exceptions of a trial: which are for lack of memory, and the way home for others."""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Iterator
from typing import Any

_NO_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory",
    "DefaultCPUAllocator: not enough memory",
    "std::bad_alloc",
)
"""In the RuntimeErrors of torch that are for lack of memory on the CPU."""

_PERHAPS_NO_MEMORY = (
    "could not create a memory",
    "could not create a primitive",
    "could not execute a primitive",
)
"""In those of oneDNN, which does not say why: they count while memory is short."""


class TrialTraceback(Exception):
    """The cause of an error that a trial raised: its traceback, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def described(error: BaseException) -> dict[str, Any]:
    """What is sent of an error."""
    kind = type(error)
    return {
        "memory": is_no_memory(error),
        "perhaps_memory": _says(error, _PERHAPS_NO_MEMORY),
        "module": kind.__module__,
        "class": kind.__qualname__,
        "text": _text(error),
        "traceback": "".join(traceback.format_exception(error)),
        "pickle": _pickled(error),
    }


def is_no_memory(error: BaseException) -> bool:
    """Whether memory was refused, by Python, by torch or by CUDA."""
    cuda = getattr(sys.modules.get("torch"), "OutOfMemoryError", MemoryError)
    return isinstance(error, (MemoryError, cuda)) or _says(error, _NO_MEMORY)


def _says(error: BaseException, marks: tuple[str, ...]) -> bool:
    return type(error) is RuntimeError and any(mark in str(error) for mark in marks)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of the user's __str__
        return ""


def _pickled(error: BaseException) -> str | None:
    """The error, where it survives being pickled."""
    try:
        content = pickle.dumps(error)
        again = pickle.loads(content)
        is_alike = type(again) is type(error) and str(again) == str(error)
    except Exception:  # whatever a class of the user's does
        return None
    return content.hex() if is_alike else None


def restored(sent: dict[str, Any], about: str) -> BaseException:
    """The error that a trial sent, with its traceback as cause and a note.

    Its class and message are the original ones; other attributes are where it could be
    pickled. A class that only the trial knew becomes RuntimeError.
    """
    error = _unpickled(sent)
    error.__cause__ = TrialTraceback(sent["traceback"])
    error.add_note(about)
    return error


def _unpickled(sent: dict[str, Any]) -> BaseException:
    if sent["pickle"] is not None:
        content = bytes.fromhex(sent["pickle"])
        error: BaseException = pickle.loads(content)  # of our own child
        return error
    for kind in _all_kinds(BaseException):
        if (kind.__module__, kind.__qualname__) == (sent["module"], sent["class"]):
            made: BaseException = kind.__new__(kind, sent["text"])
            made.args = (sent["text"],)
            return made
    return RuntimeError(f"{sent['class']}: {sent['text']}")


def _all_kinds(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_kinds(below)
