"""Taking our kernels out of the dispatcher at a moment when nobody can be inside.

The dispatcher's tables are read without locks by every thread that calls an operator.
Kernels that are switched off only forward, so there is no hurry: entries leave when no
call of ours is in flight, no thread is in a backward pass, and no other thread, where
there is one, has called one of our kernels for a millisecond. Otherwise they leave at
the end of this thread's backward pass, when a forwarded call ends, or when any function
of this package is next called.
"""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_GRACE_S = 0.001


def is_quiet(c: Any, torch: Any, is_ending: bool) -> bool:
    """Whether the dispatcher may be changed now.

    ``is_ending``: the caller is a callback at the end of a backward pass, whose work is
    done although the pass is still on the stack.
    """
    in_flight, entered = c.flight()
    if in_flight or (torch._C._current_graph_task_id() != -1 and not is_ending):
        return False
    frames = sys._current_frames()
    backward = torch.autograd.graph._engine_run_backward.__code__
    n_passes = sum(_count(frame, backward) for frame in frames.values())
    if n_passes > is_ending:
        return False
    if _is_only_thread(frames):
        return True
    time.sleep(_GRACE_S)
    return c.flight() == (0, entered)


def _is_only_thread(frames: dict[int, FrameType]) -> bool:
    """Whether nobody else can be between the dispatcher's table and our kernel.

    Native threads have no Python frames and may call operators all the same.
    """
    if frames.keys() != {threading.get_ident()}:
        return False
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


def _count(frame: FrameType | None, code: Any) -> int:
    n = 0
    while frame is not None:
        n += frame.f_code is code
        frame = frame.f_back
    return n
