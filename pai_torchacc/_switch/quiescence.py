"""Taking our kernels out of the dispatcher at a moment when nobody can be inside.

The dispatcher's tables are read without locks by every thread that calls an operator.
Kernels that are switched off only forward, so there is no hurry: entries leave when no
call of ours is in flight, no thread is in a backward pass, and every other thread
sleeps in a system call, where none is on its way to a kernel of ours
(``csrc/bind/torch/overrides/quiescence.c``). Otherwise they leave at the end of this
thread's backward pass, when a forwarded call ends, or when any function of this package
is next called.
"""

from __future__ import annotations

from typing import Any


def is_outside_backward(c: Any, torch: Any, is_ending: bool) -> bool:
    """Whether no thread is in a backward pass.

    ``is_ending``: the caller is a callback at the end of one, whose work is done
    although it is still on the stack.
    """
    if torch._C._current_graph_task_id() != -1 and not is_ending:
        return False
    backward = torch.autograd.graph._engine_run_backward.__code__
    return c.frames_of(backward) <= is_ending
