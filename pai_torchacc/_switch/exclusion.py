"""Modules whose forward passes run stock."""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host
from pai_torchacc._switch import state

if TYPE_CHECKING:
    from torch import nn


class _Calls(dict[object, object]):
    """What keeps threads disabled by one exclusion, of each forward pass that runs."""

    def __reduce__(self) -> Any:
        return _Calls, ()  # a copy of the module does not run


@dataclass(frozen=True)
class _Call:
    """A forward pass of an excluded module."""

    calls: _Calls
    frame: FrameType
    """That calls the hooks."""
    key: object = field(default_factory=object)
    """Of this in ``calls``, until it ends."""

    def is_running(self) -> bool:
        return self.key in self.calls

    def end(self) -> None:
        self.calls.pop(self.key, None)


class _Here(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_here = _Here()


class Exclusion:
    """What :func:`pai_torchacc.exclude` returns; :meth:`remove` ends it."""

    def __init__(self, module: nn.Module):
        self._calls = _Calls()
        enter, leave = partial(_enter, self._calls), partial(_leave, self._calls)
        self._hooks = (
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        )
        self._name, self._is_removed = type(module).__name__, False

    def __repr__(self) -> str:
        state = "removed" if self._is_removed else "active"
        return f"<pai_torchacc exclude({self._name}): {state}>"

    def remove(self) -> None:
        """Have the module accelerated again, at once where it runs just now."""
        for hook in self._hooks:
            hook.remove()
        self._is_removed = True
        self._calls.clear()  # which no hook ends any more

    def __enter__(self) -> Exclusion:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def exclude(module: nn.Module) -> Exclusion:
    """Run stock operators in the forward passes of one module and of what it contains.

    Forward hooks of the module do it, in every thread, until the result's
    :meth:`remove`, or the end of a ``with`` block. Copies and pickles of the module
    have the hooks too. TorchScript refuses modules that have them. The gradients of
    operators that ran stock are chosen as ever: ``enable(exclude=[...])`` leaves an
    operator out with its gradient, everywhere.

    Parameters
    ----------
    module : torch.nn.Module
        Such as one layer of a model.

    Raises
    ------
    TypeError
        This is no module.
    """
    from torch import nn

    if not isinstance(module, nn.Module):
        raise TypeError(f"module is a torch.nn.Module, not {type(module).__name__}")
    return Exclusion(module)


def _drop_ended() -> None:
    """Forget calls that an interrupt has ended, after which torch calls no hooks."""
    if _here.calls:
        running = {id(frame) for frame, _ in traceback.walk_stack(sys._getframe())}
        for call in _here.calls:
            if id(call.frame) not in running:
                call.end()
        _here.calls = [call for call in _here.calls if call.is_running()]


state.when_asked.append(_drop_ended)


def _enter(calls: _Calls, module: Any, args: Any) -> None:
    c = _host.loaded()
    if c is not None and not _is_compiling():
        _drop_ended()
        call = _Call(calls, sys._getframe(1))
        _here.calls.append(call)
        calls[call.key] = c.thread_disable()


def _leave(calls: _Calls, module: Any, args: Any, result: Any) -> None:
    # Torch calls this also where a hook before _enter() has raised.
    if not _is_compiling() and _here.calls:
        here = _here.calls = [call for call in _here.calls if call.is_running()]
        if here and here[-1].calls is calls:
            here[-1].end()
            here.pop()


def _is_compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()
