"""Calls that a training step's plan makes as they are: of optimizers and their like.

Each is one node, from its outermost function on, since a replay calls that. Where
something of the program's stands around it, which a replay would call again, there is
no plan.
"""

from __future__ import annotations

import inspect
import opcode
import operator
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.amp import grad_scaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler, optimizer

from pai_torchacc.graph.ir import Function, Node
from pai_torchacc.graph.memories import Memories
from pai_torchacc.graph.refusals import CannotPlan, is_of_a_library, where

_FILES = {
    str(Path(module.__file__)): names
    for module, names in {
        lr_scheduler: {"step"},
        grad_scaler: {"step", "update", "unscale_"},
        clip_grad: {"clip_grad_norm_", "clip_grad_value_"},
    }.items()
    if module.__file__
}

NAMES = frozenset().union(*_FILES.values())
"""What these functions are called."""

_CLIPPING = {
    "clip_grad_norm_": ("max_norm", "norm_type", "error_if_nonfinite", "foreach"),
    "clip_grad_value_": ("clip_value", "foreach"),
}
"""What these are given beside parameters."""


def is_begun(frame: FrameType) -> bool:
    """A function of torch's is called that is to be a node."""
    return frame.f_code.co_name in _FILES.get(frame.f_code.co_filename, ())


def has_returned(frame: FrameType) -> bool:
    """A frame ends by a return, and not by an exception."""
    instruction = opcode.opname[frame.f_code.co_code[frame.f_lasti]]
    return instruction.startswith("RETURN")


def step_of(called: Optimizer, args: Any, kwargs: Any) -> Node:
    """A node for an optimizer's step, which is about to be made.

    Raises
    ------
    CannotPlan
        It is given a closure, or somebody else stands around it.
    """
    if len(args) > 1 or any(value is not None for value in kwargs.values()):
        raise CannotPlan("an optimizer is given a closure", where())
    before = optimizer._global_optimizer_pre_hooks
    behind = optimizer._global_optimizer_post_hooks
    if len(before) > 1 or len(behind) > 1:  # one is the recorder's
        raise CannotPlan("hooks listen to all optimizers", where())
    own = vars(called).get("step")
    if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):
        raise CannotPlan("an optimizer's step has been replaced", where())
    frame = inspect.currentframe()
    while frame is not None:
        if (
            frame.f_code.co_name == "step"
            and frame.f_locals.get("self") is called
            and not is_of_a_library(frame)
        ):
            raise CannotPlan("an optimizer's step calls another one", where())
        frame = frame.f_back
    return _method(called, "step")


def method_of(frame: FrameType) -> Node | None:
    """A node for a method that begins; None of a function."""
    code, given = frame.f_code, frame.f_locals
    called = given.get("self")
    if called is None:
        return None
    name = f"{type(called).__name__}.{code.co_name}"
    outermost = inspect.unwrap(getattr(type(called), code.co_name))
    if outermost.__code__ is not code or code.co_name in vars(called):
        raise CannotPlan(f"{name}() has been replaced", where(frame))
    rest: tuple[Any, ...] = ()
    if isinstance(given.get("optimizer"), Optimizer):
        rest = (given["optimizer"],)
    others = code.co_varnames[1 + len(rest) : code.co_argcount]
    values = [given.get(other) for other in others]
    if any(v is not None for v in values) or given.get("args") or given.get("kwargs"):
        raise CannotPlan(f"{name}() is given a value", where(frame))
    return _method(called, code.co_name, *rest)


def clipping_of(frame: FrameType, memories: Memories) -> Node:
    """A node for ``clip_grad_*``, which has listed the parameters by now."""
    name, given = frame.f_code.co_name, frame.f_locals
    parameters = given["parameters"]
    if not isinstance(parameters, list | tuple):
        raise CannotPlan(f"{name}() is given an iterator")
    rest = tuple(given[argument] for argument in _CLIPPING[name])
    if any(isinstance(argument, Tensor) for argument in rest):
        raise CannotPlan(f"{name}() is given a tensor's number")
    values = [memories.value_of(parameter) for parameter in parameters]
    call = Function(name, _current(name), False, is_foreign=True)
    return Node(call, (values, *rest), {}, [])


def _method(of: Any, name: str, *args: Any) -> Node:
    """A node that calls a method, with all that torch has put around it."""
    call = operator.methodcaller(name, *args)
    name = f"{type(of).__name__}.{name}"
    return Node(Function(name, call, False, is_foreign=True), (of,), {}, [])


def _current(name: str) -> Callable[..., Any]:
    """Calls whatever stands under its name then, which may be ours."""

    def call(*args: Any) -> Any:
        return getattr(clip_grad, name)(*args)

    return call
