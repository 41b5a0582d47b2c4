"""Where updates are made: torch's functions are called with the multiplied rate.

Each ``step`` of torch.optim calls a function of its module by name, with its rate as an
argument. The stand-in for that function looks at who calls: the rate of an optimizer's
own step is multiplied, any other call is torch's.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from pai_torchacc import _C
from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr import step_protocol, update_rules
from pai_torchacc.adaptive_lr.registry import known_tuner, tuner_of
from pai_torchacc.adaptive_lr.step_protocol import REHEARSED, Coming
from pai_torchacc.adaptive_lr.update_rules import FUNCTIONS
from pai_torchacc.adaptive_lr.watching import aside


def install(ledger: Ledger) -> None:
    """Multiply rates from now on, but for steps of disabled threads."""
    from torch import optim

    for name, function in FUNCTIONS.items():
        module = import_module(f"torch.optim.{function}")
        code = inspect.unwrap(getattr(optim, name).step).__code__
        original = vars(module)[function]
        ledger.set_attribute(module, function, _multiplying(original, code))
        if not ledger.has_set(module, function):
            reason = f"torch.optim.{function}.{function} was changed by others"
            update_rules.unserved[name] = reason
            if name == "Adam":
                update_rules.unserved["AdamW"] = reason
    step_protocol.answers(_coming)


def remove() -> None:
    """Steps that ask are told the user's rate."""
    step_protocol.answers(None)
    update_rules.unserved.clear()


@aside
def _coming(optimizer: Any, group: Any) -> Coming:
    """For a step of all groups, or of one: then the first has a new one computed."""
    own = vars(optimizer)
    rehearsed = own.get(REHEARSED)
    if rehearsed is not None:
        return rehearsed, None
    tuner = tuner_of(optimizer)
    if _C.thread_is_disabled():
        tuner.roots.clear()
        return 1.0, None
    found_inf = own.get("found_inf")  # of a GradScaler, for those that unscale
    if found_inf is not None and tuner.known is not None and float(found_inf) != 0:
        tuner.roots.clear()
        return tuner.multiplier, None
    if group is None or not tuner.is_stepping or tuner.roots:
        stepping = update_rules.with_gradients(optimizer)
        if not stepping:
            tuner.roots.clear()
            return tuner.multiplier, None
        tuner.is_stepping = True
        roots = tuner.begin_step()
        if tuner.known is not None:
            tuner.next(optimizer, stepping, roots, _scale(optimizer))
    return tuner.multiplier, tuner.wanted


def _scale(optimizer: Any) -> float:
    """What gradients are multiplied by inside the step."""
    scale = vars(optimizer).get("grad_scale")
    return 1.0 if scale is None else 1 / float(scale)


def _has_stepped(optimizer: Any, group: Any) -> None:
    tuner = known_tuner(optimizer)
    if tuner is not None and group is optimizer.param_groups[-1]:
        tuner.is_stepping = False


def _multiplying(original: Any, caller: Any) -> Callable[..., Any]:
    import torch

    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def update(*args: Any, **kwargs: Any) -> Any:
        if is_compiling():
            return original(*args, **kwargs)
        frame = sys._getframe(1)
        if frame.f_code is not caller:
            return original(*args, **kwargs)
        names = frame.f_locals
        optimizer, group = names["self"], names["group"]
        if args and not args[0]:  # the update is done, or there is none
            _has_stepped(optimizer, group)
            return original(*args, **kwargs)
        multiplier, sums = _coming(optimizer, group)
        if sums is not None:
            known_tuner(optimizer).tell(optimizer, group, _scale(optimizer))
        _has_stepped(optimizer, group)
        if multiplier != 1:
            kwargs["lr"] = kwargs["lr"] * multiplier
            if group.get("decoupled_weight_decay"):
                kwargs["weight_decay"] = kwargs["weight_decay"] / multiplier
        return original(*args, **kwargs)

    update.multiplies_rates_of = original
    return update
