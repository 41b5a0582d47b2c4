"""Our hooks on saved tensors: in which threads they are, and under whose.

Torch keeps a stack of hooks for each thread, of which the top one is asked. Ours lie
at the bottom, so that a program's own always win. A thread that ends must have lost
them by then: torch would take them off its stack where there is no interpreter left.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from pai_torchacc import _host
from pai_torchacc._ledger import Ledger
from pai_torchacc._lock import hooks as _lock

_R = TypeVar("_R")

_autograd = torch._C._autograd
_lowered = threading.local()
_raised = threading.local()

_threads: set[int] = set()
"""That have ours."""

_transforms = Ledger()
"""What lets torch's transforms run; needed until no thread has ours any more."""


class _Mark:
    """That a thread has ours; goes with the thread, or earlier."""

    _thread = 0

    def __init__(self, c: Any):
        self._c, self._thread = c, threading.get_ident()
        _threads.add(self._thread)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if is_finalizing():  # a daemon thread's, and this module is no more
            return
        if not self._thread:  # interrupted before there was anything, or has gone
            return
        # In the child of a fork all marks of other threads go, in the one that is left.
        if threading.get_ident() == self._thread:
            _take_out(self._c)
        self.go()

    def go(self) -> None:
        """Before it is dropped: an interrupt in __del__ reaches nobody."""
        _threads.discard(self._thread)
        leave_transforms_alone(self._c)
        self._thread = 0


def _is_allowed() -> bool:
    return _autograd._saved_tensors_hooks_get_disabled_error_message() is None


def raise_in_this_thread(c: Any) -> None:
    """Put ours under whatever hooks this thread has."""
    if not _is_allowed():
        _lowered.by = c
        return
    if not hasattr(_raised, "mark"):
        _raised.mark = _Mark(c)
    c.saved_hooks((c.saved_pack, c.saved_unpack))


def _take_out(c: Any) -> bool:
    return _is_allowed() and c.saved_hooks(None)


def lower_in_this_thread(c: Any) -> bool:
    """Take ours out; whether they were there."""
    _lowered.by = None
    was_there = _take_out(c)
    mark = _raised.__dict__.pop("mark", None)
    if mark is not None:
        mark.go()
    return was_there


def without_any(function: Callable[..., _R]) -> Callable[..., _R]:
    """``function``, run where this thread has nobody's hooks."""

    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return _host.load().saved_without_hooks(lambda: function(*args))

    return run


def install(c: Any, ledger: Ledger) -> None:
    """Have new threads begin with our hooks, and transforms run without them."""
    c.lend(
        top_saved_hooks=_autograd._top_saved_tensors_default_hooks,
        pop_saved_hooks=_autograd._pop_saved_tensors_default_hooks,
        push_saved_hooks=_autograd._push_saved_tensors_default_hooks,
    )
    ledger.set_attribute(
        threading.Thread,
        "_bootstrap_inner",
        _beginning_with_ours(c, threading.Thread._bootstrap_inner),
    )
    atexit.unregister(lower_in_this_thread)
    atexit.register(lower_in_this_thread, c)
    with _lock:
        if _transforms:
            return
        disable = _autograd._saved_tensors_hooks_disable
        enable = _autograd._saved_tensors_hooks_enable
        _transforms.set_attribute(
            _autograd, "_saved_tensors_hooks_disable", _without_ours(c, disable)
        )
        _transforms.set_attribute(
            _autograd, "_saved_tensors_hooks_enable", _with_ours(enable)
        )


def leave_transforms_alone(c: Any) -> None:
    """As soon as that is safe: when we are off, and no thread has ours."""
    with _lock:
        if _transforms and not _threads and not c.saved_is_on():
            _transforms.undo()


def remarks() -> list[str]:
    """What others had patched when transforms were left alone."""
    return list(_transforms.remarks)


def _beginning_with_ours(c: Any, stock: Callable[[Any], None]) -> Callable[..., None]:
    def _bootstrap_inner(self: threading.Thread) -> None:
        if c.saved_is_on():
            raise_in_this_thread(c)
        try:
            stock(self)
        finally:
            lower_in_this_thread(c)

    return _bootstrap_inner


def _without_ours(c: Any, stock: Callable[..., None]) -> Callable[..., None]:
    """Torch's functional transforms refuse to run under any hooks."""

    def _saved_tensors_hooks_disable(message: str, *args: Any, **kwargs: Any) -> None:
        was_there = _is_allowed() and lower_in_this_thread(c)
        try:
            stock(message, *args, **kwargs)
        except BaseException:
            if was_there:
                raise_in_this_thread(c)
            raise
        if was_there and c.saved_is_on():
            _lowered.by = c

    return _saved_tensors_hooks_disable


def _with_ours(stock: Callable[[], None]) -> Callable[[], None]:
    def _saved_tensors_hooks_enable() -> None:
        stock()
        c = getattr(_lowered, "by", None)
        if c is not None:
            _lowered.by = None
            if c.saved_is_on():
                raise_in_this_thread(c)

    return _saved_tensors_hooks_enable
