"""Optimizer steps of torch's SGD, Adam, AdamW and their like as one call each.

Two stand-ins a class. ``step`` is the short way, for instances without hooks in a
process that is not being profiled: all groups in one call, or nothing. Everything else
goes through torch's own ``step`` with its hooks, closures and profiler ranges, and
arrives at ``_init_group``, where a group's update is done in place of collecting its
tensors; torch's update then finds empty lists. That way also serves optimizers whose
``step`` somebody has kept or wrapped before, as learning rate schedulers do.

A group gets the numbers of what it asks for: the loop over tensors, ``foreach`` or
``fused``. Steps to which a ``GradScaler`` has handed its scale are stock's.

Both ask at each step whether what torch's own step would call is still torch's or ours.

``zero_grad`` sets the gradients of all parameters to None in one call, and those on a
CUDA device to zero.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr.step_protocol import beneath, coming
from pai_torchacc.fusion.compiled import frame_callback, not_compiled_alone
from pai_torchacc.fusion.shadow import Rehearsal
from pai_torchacc.memory_reuse.steps import note_end

OPERATORS = (
    *("sgd_step", "adam_step", "adamw_step", "adadelta_step"),
    *("rmsprop_step", "adagrad_step", "nadam_step"),
)


@dataclass
class _Step:
    """A class's ``step`` and what torch would have made of it by now.

    Constructing an optimizer wraps the ``step`` of its class in profiling and hooks,
    unless that, own or inherited, is wrapped already. Ours passes for wrapped.
    """

    cls: Any
    kind: str
    """Torch's module of the class: ``"sgd"``, ``"adam"``, also AdamW's, and others."""
    base: _Step | None = None
    """Of the class that it inherits its step from."""
    hooked: Any = None
    """Torch's wrapper around it, where that would be by now."""
    stand_in: Any = None

    def __post_init__(self) -> None:
        self.original = self.cls.step

    def is_hooked(self) -> bool:
        """Whether torch's own would be wrapped."""
        if self.hooked or getattr(self.original, "hooked", False):
            return True
        return self.base is not None and self.base.is_hooked()

    def stock(self) -> Any:
        """What torch would call."""
        return self.hooked or (self.base.stock() if self.base else self.original)

    def restored(self, before: Any) -> Any:
        """What torch would have in the class, where ``before`` was."""
        return self.hooked or before


def hooked(cls: type, step: Any) -> Any:
    """The step of a class in torch's wrapper."""
    wrapped = cls.profile_hook_step(step)
    wrapped.hooked = True
    return wrapped


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop
    from torch.optim.optimizer import Optimizer

    adam = _Step(Adam, "adam")
    inherits = "step" not in vars(AdamW)  # torch has wrapped none for it
    steps = [
        _Step(SGD, "sgd"),
        adam,
        _Step(AdamW, "adam", adam if inherits else None),
        *(
            _Step(cls, cls.__name__.lower())
            for cls in (Adadelta, RMSprop, Adagrad, NAdam)
        ),
    ]
    for entry in steps:
        if entry.base and not ledger.has_set(entry.base.cls, "step"):
            continue  # somebody is in the way, also for those who inherit
        entry.stand_in = _step(c, entry)
        ledger.set_attribute(entry.cls, "step", entry.stand_in, entry.restored)
    for entry in steps:
        cls = entry.cls
        if "_init_group" in vars(cls):
            _installed[cls] = _init_group(c, cls, entry.kind)
            ledger.set_attribute(cls, "_init_group", _installed[cls])
        else:
            _installed[cls] = _installed[Adam]
    ledger.set_attribute(Optimizer, "_patch_step_function", _noting(steps, Optimizer))
    ledger.set_attribute(Optimizer, "zero_grad", _zero_grad(c, Optimizer))


def _noting(steps: list[_Step], base: type) -> Callable[[Any], None]:
    """Do what torch would if it saw its own ``step`` in place of ours."""
    original = vars(base)["_patch_step_function"]

    @functools.wraps(original)
    def _patch_step_function(self: Any) -> None:
        cls = type(self)
        entry = next((e for e in steps if cls.step is e.stand_in), None)
        if entry and not entry.is_hooked():
            if cls is entry.cls:
                entry.hooked = hooked(cls, entry.original)
            else:
                cls.step = hooked(cls, entry.original)
        original(self)

    return _patch_step_function


_installed: dict[type, Any] = {}
"""By class, the latest ``_init_group``: earlier ones that others kept give way."""


def _leads_to_ours(optimizer: Any) -> bool:
    """Whether torch's step would call our ``_init_group``.

    Others may have put theirs into the instance or the class. Torch.compile puts a
    wrapper around ours.
    """
    ours = _installed[type(optimizer)]
    function = getattr(optimizer._init_group, "__func__", None)
    return function is ours or _within(function) is ours


def _within(function: Any) -> Any:
    """What torch.compile has put wrappers around; other functions themselves."""
    while _is_of_compile(getattr(function, "__globals__", {})):
        function = getattr(function, "__wrapped__", None)
    return function


def _is_of_compile(module: dict[str, Any]) -> bool:
    return module.get("__name__") == "torch._dynamo.eval_frame"


def _updates_as_found(name: str) -> Callable[[], bool]:
    """Whether the functions that torch's step calls for the numbers are as now."""
    module = vars(import_module(f"torch.optim.{name}"))
    inner = [f"_{how}_{name}" for how in ("single_tensor", "multi_tensor", "fused")]
    outer_found = beneath(module[name])
    inner_found = [_within(module.get(f)) for f in inner]

    def are_as_found() -> bool:
        found = [module.get(f) for f in inner]
        return beneath(module.get(name)) is outer_found and (
            found == inner_found or [_within(f) for f in found] == inner_found
        )

    return are_as_found


def _step(c: Any, entry: _Step) -> Any:
    import torch
    from torch.optim import optimizer

    original, kind = entry.original, entry.kind
    accelerated = c.optimizer_step
    is_compiling, compiler = torch.compiler.is_compiling, frame_callback()
    is_profiling = torch._C._autograd._profiler_enabled
    global_pre = optimizer._global_optimizer_pre_hooks
    global_post = optimizer._global_optimizer_post_hooks
    updates_as_found = _updates_as_found(kind)

    @not_compiled_alone
    @functools.wraps(original)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return step_or_stock(self, args, kwargs)
        except BaseException as error:
            hide(error)
            raise

    def step_or_stock(self: Any, args: Any, kwargs: Any) -> Any:
        if is_compiling():
            return original(self, *args, **kwargs)
        if type(self) in _installed and compiler() is None:
            if not _leads_to_ours(self):
                for group in self.param_groups:
                    c.refuse(_operator(kind, group), "overridden by others")
            elif (
                not args
                and not kwargs
                and not self._optimizer_step_pre_hooks
                and not self._optimizer_step_post_hooks
                and not global_pre
                and (not global_post or list(global_post.values()) == [note_end])
                and not is_profiling()
                and not _is_scaled(self)
                and updates_as_found()
                and accelerated(kind, self, *coming(self))
            ):
                if global_post:
                    c.pool_end_step()
                return None
        return entry.stock()(self, *args, **kwargs)

    step.hooked = True
    return step


def _init_group(c: Any, cls: type, kind: str) -> Any:
    import torch

    original = vars(cls)["_init_group"]
    accelerated = c.optimizer_group
    is_compiling, compiler = torch.compiler.is_compiling, frame_callback()
    bare_step = inspect.unwrap(cls.step)
    caller = bare_step.__code__
    updates_as_found = _updates_as_found(kind)
    nothing = (False, False) if kind == "adagrad" else False  # sparse or complex ones

    @functools.wraps(original)
    def _init_group(self: Any, group: Any, *lists: Any) -> Any:
        # Others than torch's own step want the lists, torch.compile among them.
        if (
            is_compiling()
            or compiler() is not None
            or _installed.get(cls) is not _init_group
            or not _is_called_by(caller, sys._getframe(1))
        ):
            return original(self, group, *lists)
        try:
            op, reason = _operator(kind, group), None
            if type(self) not in _installed:
                reason = "optimizer subclass"
            elif _is_scaled(self):
                reason = "fused"
            elif not updates_as_found():
                reason = "overridden by others"
            if reason:
                c.refuse(op, reason)
                return original(self, group, *lists)
            rehearsal = None
            rate = coming(self, group)
            if c.shadow_due(op) and not _is_captured(group):
                rehearsal = Rehearsal(c, self, group, bare_step, original, rate[0])
            start = time.perf_counter_ns()
            done = accelerated(kind, self.state, group, *rate)
            if done < 0:
                original(self, group, *([] for _ in lists))
                done = accelerated(kind, self.state, group, *rate)
            if done > 0 and rehearsal:
                rehearsal.settle(op, time.perf_counter_ns() - start)
            return nothing if done > 0 else original(self, group, *lists)
        except BaseException as error:
            hide(error)
            raise

    return _init_group


def _is_scaled(optimizer: Any) -> bool:
    """Whether a ``GradScaler`` leaves dividing the gradients to torch's kernel."""
    asked = vars(optimizer)
    return asked.get("grad_scale") is not None or asked.get("found_inf") is not None


def _is_captured(group: dict[str, Any]) -> bool:
    """Whether a CUDA graph is recording the step, which nothing may wait for."""
    from torch.cuda import is_current_stream_capturing

    on_cuda = any(p.is_cuda for p in group["params"][:1])
    return on_cuda and bool(is_current_stream_capturing())


def _operator(kind: str, group: dict[str, Any]) -> str:
    if kind != "adam":
        return f"{kind}_step"
    return "adamw_step" if group.get("decoupled_weight_decay") else "adam_step"


def _is_called_by(code: Any, frame: Any) -> bool:
    """Whether the frame runs this code, past the wrappers of torch.compile."""
    while frame.f_code is not code:
        if not _is_of_compile(frame.f_globals):
            return False
        frame = frame.f_back
    return True


def _zero_grad(c: Any, base: type) -> Any:
    import torch

    original = vars(base)["zero_grad"]
    to_none, to_zero = c.zero_grads, c.zeros_on_cuda
    is_compiling = torch.compiler.is_compiling
    is_profiling = torch._C._autograd._profiler_enabled

    @not_compiled_alone
    @functools.wraps(original)
    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        accelerated = to_none if set_to_none else to_zero
        if is_compiling() or is_profiling() or not accelerated(self.param_groups):
            original(self, set_to_none)

    return zero_grad
