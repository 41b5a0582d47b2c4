"""Modules whose forward passes run stock."""

from __future__ import annotations

import sys
import threading
import traceback
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from pai_torchacc import _host
from pai_torchacc._switch import state

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class _Call:
    """A forward pass of an excluded module."""

    module: nn.Module
    frame: FrameType
    """That calls the hooks."""
    disabled: object
    """What keeps this thread disabled."""


class _Here(threading.local):
    """Of one thread."""

    def __init__(self) -> None:
        self.calls: list[_Call] = []


_here = _Here()


class Exclusion:
    """What :func:`pai_torchacc.exclude` returns; :meth:`remove` ends it."""

    def __init__(self, module: nn.Module):
        self._hooks = (
            module.register_forward_pre_hook(_enter, prepend=True),
            module.register_forward_hook(_leave, always_call=True),
        )
        self._module = ref(module)
        self._name, self._is_removed = type(module).__name__, False

    def __repr__(self) -> str:
        state = "removed" if self._is_removed else "active"
        return f"<pai_torchacc exclude({self._name}): {state}>"

    def remove(self) -> None:
        """Have the module accelerated again."""
        for hook in self._hooks:
            hook.remove()
        self._is_removed = True
        _drop_ended()
        # Where it runs just now, the hook that would have ended this is no more.
        module = self._module()
        _here.calls = [call for call in _here.calls if call.module is not module]

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
        _here.calls = [call for call in _here.calls if id(call.frame) in running]


state.when_asked.append(_drop_ended)


def _enter(module: Any, args: Any) -> None:
    c = _host.loaded()
    if c is not None and not _is_compiling():
        _drop_ended()
        _here.calls.append(_Call(module, sys._getframe(1), c.thread_disable()))


def _leave(module: Any, args: Any, result: Any) -> None:
    # Torch calls this also where a hook before _enter() has raised.
    calls = _here.calls
    if not _is_compiling() and calls and calls[-1].module is module:
        calls.pop()


def _is_compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()
