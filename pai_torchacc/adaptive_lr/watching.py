"""Which optimizers a thread's backward passes look at.

A pass compares the gradients of each watched optimizer before and after. An optimizer
that has been neither reached nor stepped for some passes becomes idle: it is not
looked at until a hook on one of its parameters' gradients tells that a pass reaches
it. So a pass costs time in proportion to the parameters that take part in it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType, WeakSet, ref

import torch

from pai_torchacc.adaptive_lr.clipping import (
    Versions,
    gradients_of,
    params_of,
    versions_of,
)
from pai_torchacc.fusion.compiled import not_compiled

if TYPE_CHECKING:
    from pai_torchacc.adaptive_lr.tuner import Root, Tuner

_PATIENCE = 8
"""Passes without it after which an optimizer is idle. Programs that train several
models in turn come back to each of them sooner."""


class _Thread(threading.local):
    """What one thread looks at: the gradients of others may be written at any time."""

    def __init__(self) -> None:
        self.mark = object()  # idents are used again when threads have ended
        self.watched: dict[Tuner, None] = {}
        self.idle: WeakSet[Tuner] = WeakSet()
        self.running: Pass | None = None


_thread = _Thread()


def watch(tuner: Tuner) -> None:
    """Have this thread's backward passes look at an optimizer, which is now its own."""
    tuner.thread, tuner.is_idle, tuner.n_passes_without = _thread.mark, False, 0
    _thread.idle.discard(tuner)
    _thread.watched[tuner] = None


def is_of_this_thread(tuner: Tuner) -> bool:
    """Whether this thread has made the optimizer, or has stepped it last."""
    return tuner.thread is _thread.mark


class Pass:
    """A backward pass, and the optimizers that it may reach."""

    def __init__(self) -> None:
        self._looked_at: list[tuple[Any, Tuner, Versions]] = []
        # Gradients are held: a new one must not have the address of one replaced.
        self._held: list[Any] = []

    @staticmethod
    @not_compiled
    def begin() -> Pass | None:
        """The pass that this thread begins; None where no rate can depend on it."""
        found, is_wanted = [], bool(_thread.idle)
        for tuner in list(_thread.watched):
            optimizer, is_ours = tuner.optimizer(), tuner.thread is _thread.mark
            if optimizer is None or not is_ours or tuner.is_retired:
                del _thread.watched[tuner]
            else:
                found.append((optimizer, tuner))
                is_wanted = is_wanted or tuner.known is not None
        if not is_wanted:
            return None
        made = _thread.running = Pass()
        for optimizer, tuner in found:
            tuner.remove_hooks()
            made.look_at(optimizer, tuner)
        return made

    def look_at(self, optimizer: Any, tuner: Tuner) -> None:
        """Note the gradients as they are before the pass has changed them."""
        gradients = gradients_of(optimizer)
        self._held.append(gradients)
        versions = versions_of(gradients)
        tuner.drop_thrown_away(optimizer, versions)
        self._looked_at.append((optimizer, tuner, versions))

    @not_compiled
    def end(self, root: Root | None) -> None:
        """Tell those that were reached of the loss; None where the pass has failed."""
        _thread.running = None
        if root is None:
            return
        reached, others = [], []
        for optimizer, tuner, before in self._looked_at:
            if tuner.thread is not _thread.mark:  # any more
                continue
            has_changed = versions_of(gradients_of(optimizer)) != before
            (reached if has_changed else others).append((optimizer, tuner))
        for optimizer, tuner in reached:
            tuner.n_passes_without = 0
            tuner.note(root, optimizer)
        tuners = [tuner for _, tuner in reached]
        for optimizer, tuner in others:
            if tuners and tuner not in tuners:
                tuner.note_frozen(optimizer, tuners)
            tuner.n_passes_without += 1
            if tuner.n_passes_without > _PATIENCE:
                _make_idle(optimizer, tuner)


def _make_idle(optimizer: Any, tuner: Tuner) -> None:
    """Look at it no more until it steps, or a pass reaches one of its parameters.

    Where parameters are frozen or exchanged afterwards, hooks do not tell; it is then
    watched from its next step on.
    """
    hook = _wakes(ref(tuner))
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
                    tuner.hooks.append((node, node.register_prehook(hook)))
    except (AttributeError, RuntimeError):  # of a kind that cannot be looked into
        tuner.remove_hooks()
        tuner.n_passes_without = 0
        return
    tuner.is_idle = True
    _thread.watched.pop(tuner, None)
    _thread.idle.add(tuner)


def _wakes(reference: ReferenceType[Tuner]) -> Any:
    @not_compiled
    def wake(gradients: Any) -> None:
        tuner, running = reference(), _thread.running
        if tuner is None or running is None or tuner not in _thread.idle:
            return
        optimizer = tuner.optimizer()
        if optimizer is None or not is_of_this_thread(tuner) or tuner.is_retired:
            return
        watch(tuner)  # hooks are removed later: torch is calling them
        running.look_at(optimizer, tuner)

    return wake
