"""Modules and functions that follow each other in functions of the program.

``out = self.bn(out)`` and ``out = self.relu(out)`` are two calls in the bytecode of a
``forward``, and what the first gives is seen by nobody but the second. Where the two
are the work of one chain, as in an ``nn.Sequential`` (see :mod:`..sequential`), the
first call computes both, and the second gives what it gets. :mod:`.bytecode` reads the
function, the extension (``callpath/site``) does the rest.

Between the two calls, a window, the variable ``out`` has the result of both. What
answers the second call stays in place until all windows are closed: switching off,
which may come from another thread, or from a signal's handler or a finalizer between
the two, waits for nobody.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pai_torchacc.fusion.foreign import is_torchs_own
from pai_torchacc.fusion.sites import bytecode


def install(c: Any) -> None:
    """Open sites; entries and module calls come first, which answer second calls."""
    if not _learn_frames(c):
        return
    own = is_torchs_own(F, "relu") and hasattr(F.relu, "__code__")
    c.lend(
        plan_code=bytecode.plans,
        module_class=nn.Module,
        stock_module_getattr=vars(nn.Module)["__getattr__"],
        object_getattribute=object.__getattribute__,
        f_relu=F.relu if own else None,
        f_relu_code=F.relu.__code__ if own else None,
        torch_relu=getattr(torch._C._VariableFunctions, "relu", None),
        relu_module=_relu(),
    )
    c.sites_open(True)


@functools.cache
def _relu() -> nn.Module:
    return nn.ReLU()


def close(c: Any) -> None:
    """Compute nothing ahead any more."""
    c.sites_open(False)


@contextlib.contextmanager
def paused(c: Any) -> Iterator[None]:
    """Compute nothing ahead meanwhile, where others change how modules are called."""
    c.sites_hold(1)
    try:
        yield
    finally:
        c.sites_hold(-1)


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
