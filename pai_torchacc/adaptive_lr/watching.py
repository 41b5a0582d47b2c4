"""Which optimizers a thread's backward passes look at.

A pass compares the gradients of each watched optimizer before and after. An optimizer
that has been neither reached nor stepped for some passes becomes idle: it is not
looked at until a hook on one of its parameters' gradients tells that a pass reaches it.
Where another one steps the same parameters, it is not looked at until its next step.
So a pass costs time in proportion to the parameters that take part in it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any
from weakref import ReferenceType, WeakSet, ref

import torch

from pai_torchacc.adaptive_lr.clipping import (
    Versions,
    gradients_of,
    params_of,
    versions_of,
)
from pai_torchacc.adaptive_lr.pending import PATIENCE, Root, Watched
from pai_torchacc.fusion.compiled import not_compiled


def aside(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, unseen by dynamo and by torch-function modes of the program.

    A default device is such a mode, and would be asked about each gradient looked at.
    """

    @functools.wraps(function)
    def unseen(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return not_compiled(unseen)


class _Thread(threading.local):
    """What one thread looks at: the gradients of others may be written at any time."""

    def __init__(self) -> None:
        self.mark = object()  # idents are used again when threads have ended
        self.watched: dict[Watched, None] = {}
        self.idle: WeakSet[Watched] = WeakSet()
        self.running: Pass | None = None


_thread = _Thread()


def watch(one: Watched) -> None:
    """Have this thread's backward passes look at an optimizer, which is now its own."""
    one.thread, one.is_idle, one.n_passes_without = _thread.mark, False, 0
    _thread.idle.discard(one)
    _thread.watched[one] = None


def is_of_this_thread(one: Watched) -> bool:
    """Whether this thread has made the optimizer, or has stepped it last."""
    return one.thread is _thread.mark


class Pass:
    """A backward pass, and the optimizers that it may reach."""

    def __init__(self) -> None:
        self._looked_at: list[tuple[Any, Watched, Versions]] = []
        # Gradients are held: a new one must not have the address of one replaced.
        self._held: list[Any] = []

    @staticmethod
    @aside
    def begin() -> Pass | None:
        """The pass that this thread begins; None where no rate can depend on it."""
        found, is_wanted = [], bool(_thread.idle)
        for one in list(_thread.watched):
            optimizer, is_ours = one.optimizer(), one.thread is _thread.mark
            if optimizer is None or not is_ours or one.is_retired:
                del _thread.watched[one]
            else:
                found.append((optimizer, one))
                is_wanted = is_wanted or one.is_served
        if not is_wanted:
            return None
        made = _thread.running = Pass()
        for optimizer, one in found:
            one.remove_hooks()
            made.look_at(optimizer, one)
        return made

    def look_at(self, optimizer: Any, one: Watched) -> None:
        """Note the gradients as they are before the pass has changed them."""
        gradients = gradients_of(optimizer)
        self._held.append(gradients)
        versions = versions_of(gradients)
        one.drop_thrown_away(optimizer, versions)
        if one.is_replaced:
            one.is_idle = True
            del _thread.watched[one]
        else:
            self._looked_at.append((optimizer, one, versions))

    @aside
    def end(self, root: Root | None) -> None:
        """Tell those that were reached of the loss; None where the pass has failed."""
        _thread.running = None
        if root is None:
            return
        reached, others = [], []
        for optimizer, one, before in self._looked_at:
            if one.thread is not _thread.mark:  # any more
                continue
            has_changed = versions_of(gradients_of(optimizer)) != before
            (reached if has_changed else others).append((optimizer, one))
        for optimizer, one in reached:
            one.n_passes_without = 0
            one.note(root, optimizer)
        ones = [one for _, one in reached]
        for optimizer, one in others:
            if ones and one not in ones:
                one.note_frozen(optimizer, ones)
            one.n_passes_without += 1
            if one.n_passes_without > PATIENCE:
                _make_idle(optimizer, one)


def _make_idle(optimizer: Any, one: Watched) -> None:
    """Look at it no more until it steps, or a pass reaches one of its parameters.

    Where parameters are frozen or exchanged afterwards, hooks do not tell; it is then
    watched from its next step on.
    """
    hook = _wakes(ref(one))
    try:
        with (
            torch.enable_grad(),
            torch._C._DisableTorchDispatch(),
            torch._C.DisableTorchFunction(),
        ):
            for p in params_of(optimizer):
                if p.requires_grad:
                    # The hook is gone with the node, unless somebody holds that.
                    node = p.view_as(p).grad_fn.next_functions[0][0]
                    one.hooks.append((node, node.register_prehook(hook)))
    except (AttributeError, RuntimeError):  # of a kind that cannot be looked into
        one.remove_hooks()
        one.n_passes_without = 0
        return
    one.is_idle = True
    _thread.watched.pop(one, None)
    _thread.idle.add(one)


def _wakes(reference: ReferenceType[Watched]) -> Any:
    @not_compiled
    def wake(gradients: Any) -> None:
        one, running = reference(), _thread.running
        if one is None or running is None or one not in _thread.idle:
            return
        optimizer = one.optimizer()
        if optimizer is None or not is_of_this_thread(one) or one.is_retired:
            return
        watch(one)  # hooks are removed later: torch is calling them
        running.look_at(optimizer, one)

    return wake
