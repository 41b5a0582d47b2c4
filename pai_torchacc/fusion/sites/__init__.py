"""Modules and functions that follow each other in functions of the program.

``out = self.bn(out)`` and ``out = self.relu(out)`` are two calls in the bytecode of a
``forward``, and what the first gives is seen by nobody but the second. Where the two
are the work of one chain, as in an ``nn.Sequential`` (see :mod:`..sequential`), the
first call computes both, and the second gives what it gets. :mod:`.bytecode` reads the
function, the extension (``callpath/site``) does the rest.

Between the two calls the variable ``out`` has the result of both. A function of the
program runs there only where a signal's handler, a finalizer or another thread looks
into the variables of a function that runs.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pai_torchacc.fusion.sites import bytecode, rows

_PAUSE_S = 20e-6


def install(c: Any) -> None:
    """Open sites; entries and module calls come first, by which windows are closed."""
    if not _learn_frames(c):
        return
    are_open = c.entries()
    c.lend(
        plan_site=bytecode.plan,
        module_class=nn.Module,
        stock_module_getattr=vars(nn.Module)["__getattr__"],
        object_getattribute=object.__getattribute__,
        site_functions=list(_functions(are_open)),
        relu_code=F.relu.__code__,
    )
    _State.is_wanted = True
    _open(c)


def _functions(are_open: dict[str, bool]) -> Iterator[tuple[Any, nn.Module]]:
    """Functions that are entered, and what they are as modules."""
    if are_open.get("torch.relu") and are_open.get("torch.relu_"):
        yield F.relu, _relu()
        yield torch.relu, _relu()


@functools.cache
def _relu() -> nn.Module:
    return nn.ReLU()


def close(c: Any) -> None:
    """Compute nothing ahead, and wait until no thread has anything left of it."""
    _State.is_wanted = False
    c.sites_open(False)
    while c.windows_elsewhere():
        time.sleep(_PAUSE_S)
    rows.keep(c)
    c.sites_forget()
    bytecode.forget()


@contextlib.contextmanager
def paused(c: Any) -> Iterator[None]:
    """Compute nothing ahead meanwhile, where others change how modules are called."""
    _State.n_pauses += 1
    was_wanted = _State.is_wanted
    close(c)
    _State.is_wanted = was_wanted
    try:
        yield
    finally:
        _State.n_pauses -= 1
        _open(c)


class _State:
    """What is asked of this process; written by who has the interpreter's lock."""

    is_wanted = False
    n_pauses = 0


def _open(c: Any) -> None:
    c.sites_open(_State.is_wanted and _State.n_pauses == 0)


@functools.cache
def _learn_frames(c: Any) -> bool:
    if sys.implementation.name != "cpython" or sys.version_info[:2] != bytecode.VERSION:
        return False
    if object.__basicsize__ != _PLAIN_HEAD:  # debugging builds have more there
        return False
    return _probe(object(), c)


_PLAIN_HEAD = 16


def _probe(first: object, c: Any) -> bool:
    c.frame_learn(first)
    return bool(c.frame_learn(first))
