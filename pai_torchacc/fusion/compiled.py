"""Stand-ins in programs that use torch.compile.

Dynamo traces what a stand-in stands for: by its attribute, or as what the stand-in
calls while dynamo traces. Behind a graph break a program runs as ever, but dynamo looks
at each function that is called there: those of torch.nn it leaves alone, and so it has
to leave ours. It knows them by their files. ``torch.compile(module)`` asks by the file,
too, whether it has to put a frame around ``forward`` to see anything at all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def not_compiled_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which dynamo compiles as part of others only.

    Its code is said to lie where that of what it wraps does.
    """
    if original := getattr(function, "__wrapped__", None):
        file, line = original.__code__.co_filename, original.__code__.co_firstlineno
        code = function.__code__.replace(co_filename=file, co_firstlineno=line)
        function.__code__ = code
    return _skipped(function, recursively=False)


def traced_as(original: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a stand-in that dynamo does not see: it traces ``original`` there.

    Dynamo finds the function by the attribute that ``torch.compile`` sets on what it
    returns. A stand-in that asks whether it is traced costs 40 ns more a call.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function._torchdynamo_inline = original
        return not_compiled_alone(function)

    return decorate


def not_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which dynamo leaves alone, with all that it calls."""
    return _skipped(function, recursively=True)


def _skipped(function: Callable[..., Any], recursively: bool) -> Callable[..., Any]:
    """As ``torch._dynamo.eval_frame.skip_code``, without importing dynamo."""
    with contextlib.suppress(AttributeError):  # else it compiles more than it need
        c = torch._C._dynamo.eval_frame
        skip, usual = c._FrameAction.SKIP, c._FrameAction.DEFAULT
        strategy = c._FrameExecStrategy(skip, skip if recursively else usual)
        c.set_code_exec_strategy(function.__code__, strategy)
    return function


def frame_callback() -> Callable[[], Any]:
    """Torch's function that gives None where dynamo does not look at frames.

    Where it does, and stock's function would be compiled, a stand-in has to call it.
    """
    try:
        return torch._C._dynamo.eval_frame.get_eval_frame_callback
    except AttributeError:
        return lambda: None
