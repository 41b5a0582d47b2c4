"""Stand-ins in programs that use torch.compile.

While dynamo traces, a stand-in calls what it stands for, and dynamo sees through it.
Behind a graph break a program runs as ever, but dynamo looks at each function that is
called there: those of torch.nn it leaves alone, and so it has to leave ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch


def not_compiled_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, which dynamo compiles as part of others only."""
    return _skipped(function, recursively=False)


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
