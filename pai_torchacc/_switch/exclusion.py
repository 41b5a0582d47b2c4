"""Modules whose forward passes run stock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host

if TYPE_CHECKING:
    from torch import nn

_here = threading.local()


class Exclusion:
    """What :func:`pai_torchacc.exclude` returns; :meth:`remove` ends it."""

    def __init__(self, module: nn.Module):
        self._hooks = (
            module.register_forward_pre_hook(_enter, prepend=True),
            module.register_forward_hook(_leave, always_call=True),
        )

    def remove(self) -> None:
        """Have the module accelerated again."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Exclusion:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def exclude(module: nn.Module) -> Exclusion:
    """Run stock operators in the forward passes of one module and of what it contains.

    Forward hooks of the module do it, in every thread, until the result's
    :meth:`remove`, or the end of a ``with`` block. Copies and pickles of the module
    have the hooks too. The gradients of operators that ran stock are chosen as ever:
    ``enable(exclude=[...])`` leaves an operator out with its gradient, everywhere.

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


def _open() -> list[tuple[Any, object]]:
    """Of this thread: the excluded modules that run, and what disables us meanwhile."""
    if not hasattr(_here, "open"):
        _here.open = []
    return _here.open


def _enter(module: Any, args: Any) -> None:
    c = _host.loaded()
    if c is not None and not _is_compiling():
        _open().append((module, c.thread_disable()))


def _leave(module: Any, args: Any, result: Any) -> None:
    # Torch calls this also where a hook before _enter() has raised.
    if not _is_compiling() and _open() and _open()[-1][0] is module:
        _open().pop()


def _is_compiling() -> bool:
    import torch

    return torch.compiler.is_compiling()
