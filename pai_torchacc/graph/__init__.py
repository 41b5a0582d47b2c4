"""``graph_optimization``: what is called again and again runs by a plan.

:func:`optimize` records a call of a module or function, merges what runs faster as one,
and replays the rest without Python. Nothing is compiled: the first call records and is
made as ever, the second one is planned.

Undone by ``disable("graph_optimization")``: optimized modules and functions then run
eagerly; they stay optimized for when the switch is on again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pai_torchacc import _host, _switch
from pai_torchacc._features import register
from pai_torchacc._switch import Handle

if TYPE_CHECKING:
    from pai_torchacc._config import Config
    from pai_torchacc.graph.explain import Explanation

NAME = "graph_optimization"

__all__ = [
    "CannotPlan",
    "enable_graph_optimization",
    "explain",
    "optimize",
    "register_pass",
    "unoptimize",
    "unregister_pass",
]

_T = TypeVar("_T", bound=Callable[..., Any])


def install(c: Any, config: Config | None = None) -> str | None:
    """Let plans be used; the reason when that cannot be."""
    if not _host.has_lean_paths():
        return "this torch does not let us look into tensors"
    if not _host.learns_type_versions(c):
        return "this Python does not tell whether a class is as it was"
    import torch
    from torch.nn.modules import module as modules

    from pai_torchacc.fusion import compiled
    from pai_torchacc.graph import dict_versions

    c.lend(
        get_default_dtype=torch.get_default_dtype,
        set_grad_enabled=torch._C._set_grad_enabled,
        is_anomaly_enabled=torch.is_anomaly_enabled,
        dynamo_callback=compiled.frame_callback(),
    )
    c.dict_words_are_versions(dict_versions.are_told(c))
    hooks = (
        modules._global_backward_pre_hooks,
        modules._global_backward_hooks,
        modules._global_forward_hooks,
        modules._global_forward_pre_hooks,
    )
    if not c.plans_open(hooks):
        return "this Python lacks what plans are run by"
    if config is not None:
        _seek(c, config.automatic)
    return None


def remove(c: Any) -> None:
    """Have all calls be made eagerly, and free graphs on CUDA devices."""
    _seek(c, False)
    c.plans_close()
    for one in _alive():
        one.graphs.clear()


def _seek(c: Any, is_sought: bool) -> None:
    """Plan unedited programs, or nothing that was not asked for."""
    if is_sought or f"{__name__}.unedited.candidates" in sys.modules:
        from pai_torchacc.graph.unedited import candidates

        (candidates.install if is_sought else candidates.remove)(c)


def about(config: Config) -> str:
    """For the log."""
    asked = "what optimize() was asked for"
    return f"{asked}, and what is proved plain" if config.automatic else asked


@overload
def optimize(target: _T, *, freeze: bool = ..., on_refusal: Any = ...) -> _T: ...


@overload
def optimize(
    target: None = ..., *, freeze: bool = ..., on_refusal: Any = ...
) -> Callable[[_T], _T]: ...


def optimize(
    target: Any = None,
    *,
    freeze: bool = False,
    on_refusal: Literal["warn", "raise", "ignore"] = "warn",
) -> Any:
    """Have a module or a function run by plans, and switch ``graph_optimization`` on.

    A call whose tensors look like an earlier one's is replayed: its operators run one
    after another from C, merged where a kernel does several at once, in memory that is
    kept. Of a module calls without gradients are; a function may also be a whole
    training step, with ``backward()`` and the optimizer's ``step()`` in it. By this
    call you promise that what Python does in the module or function depends on nothing
    but what is compared at each call: the sizes, strides and dtypes of tensors, other
    arguments, what it reads by name, and modules with their training flags, hooks and
    tensors. Parameters and buffers are read at each call, so that training, loading and
    replacing them need no word. Other tensors that it reads are those of the recording.

    Parameters
    ----------
    target : Module or callable
        A module stays what it is: its class, parameters, ``state_dict`` and hooks. Its
        copies, by ``copy`` or ``pickle``, are not optimized. A function comes back
        wrapped. Without it, a decorator is returned.
    freeze : bool
        You promise besides that parameters and buffers stay as they are. What depends
        on them alone is computed once: scales and shifts of batch normalization,
        weights as kernels lay them out or transform them, parametrizations. Who
        changes one all the same has to call ``optimize`` again; until then calls may
        mix what was with what is.
    on_refusal : {"warn", "raise", "ignore"}
        Where a recording shows that a call must not be replayed, as when it reads a
        tensor's number in Python or writes to an argument: warn once, with file and
        line where there is one, and make such calls eagerly; or raise
        :class:`CannotPlan` for the first of each kind, once the call has been made: a
        training step has trained by then.

    Returns
    -------
    Module or callable
        The module itself, or the wrapped function.

    Notes
    -----
    Results are new tensors in each call. Up to eight kinds of calls have plans, others
    run eagerly, as do calls with a gradient to come, under autocast, a profiler, a mode
    or a transform of torch's, and while another thread runs the same plan.

    A step leaves gradients, parameters, statistics and random streams as it would
    without a plan; its results do not belong to autograd any more. Optimizers,
    schedules, gradient scalers and ``clip_grad_norm_`` in it are called as ever, so
    that their numbers may be changed at any time. What a plan calls, and the last
    modules and optimizers among arguments, live as long as the function.

    Calls whose tensors all lie on one CUDA device are captured as CUDA graphs instead,
    up to four: see "CUDA" in ``docs/graph.md``.

    Undone by :func:`unoptimize`, and for all at once by ``disable()``.
    """
    if target is None:
        return functools.partial(optimize, freeze=freeze, on_refusal=on_refusal)
    if on_refusal not in ("warn", "raise", "ignore"):
        raise ValueError("on_refusal is 'warn', 'raise' or 'ignore'")
    if not callable(target) or isinstance(target, type):
        raise TypeError(f"a module or a function is optimized, not {target!r}")
    if not _switch.is_active(NAME):
        _switch.enable_one(NAME)
    from torch import nn

    if isinstance(target, nn.Module):
        if not vars(target).keys() >= {"_modules", "_parameters", "training"}:
            raise TypeError(f"a {type(target).__name__} goes ways of its own")
        _optimize_module(target, freeze, on_refusal)
        return target
    return _optimize_function(target, freeze, on_refusal)


def explain(target: Any, *args: Any, **kwargs: Any) -> Explanation:
    """Say what :func:`optimize` would do with a call of a module or function.

    Makes the call about a hundred times, by a plan of its own and eagerly, without
    gradients, and measures. ``target`` is as before afterwards, and switches are, but
    for ``graph_optimization``, which goes on. Random numbers are drawn. A training step
    trains: give it copies of the model and the optimizer.

    Parameters
    ----------
    target : Module or callable
        Optimized or not.
    *args, **kwargs
        Of the call.

    Returns
    -------
    pai_torchacc.graph.explain.Explanation
        As text, a table: time eager and planned, memory, and each step with its time,
        whether a kernel of ours does it, or one does several operators, or why torch
        does. ``picture`` is the plan for graphviz, ``save_svg(path)`` draws it.

    Raises
    ------
    RuntimeError
        Plans cannot be used in this process.
    """
    from torch import nn

    from pai_torchacc.graph.explain import explain as explained
    from pai_torchacc.graph.planned import Planned

    if not _switch.is_active(NAME):
        _switch.enable_one(NAME)
    c = _host.loaded()
    if c is None or not _switch.is_active(NAME):
        raise RuntimeError(f"{NAME} is not active: {_switch.reason(NAME)}")
    if isinstance(target, nn.Module):
        name = type(target).__name__
        call, root = target._call_impl, target
    else:
        target = getattr(target, "__wrapped__", target)
        name = getattr(target, "__qualname__", None) or type(target).__name__
        call, root = target, None
    planned = Planned(c, call, root, name, "ignore", is_listed=False)
    return explained(planned, args, kwargs)


def _optimize_module(module: Any, freeze: bool, on_refusal: Any) -> None:
    from pai_torchacc.graph.planned import Planned

    c = _host.loaded()
    if c is None:
        return
    if (plan := _unasked(module)) is not None:
        plan.remove()
    if module.__dict__.get("_compiled_call_impl") is not None:
        if not _is_optimized(module):
            raise ValueError("this module is compiled, by module.compile()")
        unoptimize(module)
    name = type(module).__name__
    planned = Planned(c, module._call_impl, module, name, on_refusal, is_frozen=freeze)
    module._compiled_call_impl = planned.entry


def _optimize_function(function: Any, freeze: bool, on_refusal: Any) -> Any:
    from pai_torchacc.graph.planned import Planned

    c = _host.loaded()
    if c is None:
        return function
    name = getattr(function, "__qualname__", None) or type(function).__name__
    planned = Planned(c, function, None, name, on_refusal, is_frozen=freeze)

    @functools.wraps(function)
    def optimized(*args: Any, **kwargs: Any) -> Any:
        return planned.entry(*args, **kwargs)

    optimized.__ptac_planned__ = planned  # type: ignore[attr-defined]
    return optimized


def enable_graph_optimization() -> Handle:
    """Run by plans what :func:`optimize` was given, and unedited programs as well.

    A module in evaluation that is called again and again without gradients is planned
    without a word of the program's, where two recorded calls prove it plain: all that
    its functions execute only computes, and all that they can have read is compared at
    each later call. Of a module that is not, the modules within it are looked at.
    :func:`pai_torchacc.report` says which are planned, and why others are not, with
    file and line. The module itself stays as it is, and so do its copies: the package
    knows which calls are those of a module that it has planned.

    Plans of unedited programs go away with ``disable("graph_optimization")`` or
    ``disable()``, and at the end of ``with``; :func:`optimize` alone makes none.

    Returns
    -------
    Handle
        True when active, with ``.reason`` when not.
    """
    return _switch.enable_one(NAME, automatic=True)


def _is_optimized(module: Any) -> bool:
    from pai_torchacc.graph.planned import everything

    entry = getattr(module, "__dict__", {}).get("_compiled_call_impl")
    return any(planned.entry is entry for planned in everything)


def _unasked(module: Any) -> Any:
    """What plans a module that nobody has asked to plan, or None."""
    c = _host.loaded()
    entry = c.candidates_find(module) if c is not None else None
    found = (one for one in _alive() if entry is not None and one.entry is entry)
    return next(found, None)


def unoptimize(module: Any) -> None:
    """Have an optimized module run as if :func:`optimize` had never been called.

    Raises
    ------
    ValueError
        The module is not optimized.
    """
    if (plan := _unasked(module)) is not None:
        plan.give_up("unoptimize() was called")
        return
    if not _is_optimized(module):
        raise ValueError("this module is not optimized by pai_torchacc")
    entry = module._compiled_call_impl
    module._compiled_call_impl = None
    for one in _alive():
        if one.entry is entry:
            one.graphs.clear()


def register_pass(function: Any) -> Any:
    """Have a function of the program's change graphs, before ours fuse them.

    Usable as a decorator. The function is given each
    :class:`~pai_torchacc.graph.ir.Graph` that is recorded from now on, and changes it
    in place. One of the same name takes the place of an earlier one. What it raises
    goes to whoever called the model.
    """
    from pai_torchacc.graph import passes

    return passes.register_pass(function)


def unregister_pass(function: Any) -> None:
    """Take back what :func:`register_pass` has added, or raise :class:`KeyError`."""
    from pai_torchacc.graph import passes

    passes.unregister_pass(function)


def document() -> dict[str, Any]:
    """What has been optimized, and how its calls were made."""
    plans = [
        {"name": one.name, "is_asked": one.is_asked, **one.counts()} for one in _alive()
    ]
    automatic = sys.modules.get(f"{__name__}.unedited.automatic")
    refused = automatic.refused if automatic else ()
    return {
        "plans": plans,
        "unplanned": [{"name": name, "reason": why} for name, why in refused],
    }


def reset(c: Any) -> None:
    """Count from here."""
    for one in _alive():
        one.count_anew()


def _alive() -> list[Any]:
    """What has been optimized and is still there, by name."""
    planned = sys.modules.get(f"{__name__}.planned")
    return sorted(planned.everything, key=lambda one: one.name) if planned else []


def lines(content: dict[str, Any]) -> list[str]:
    """A line for each module and function."""
    unplanned = content["unplanned"]
    return [
        *(_line(one) for one in content["plans"]),
        *(f"{one['name']} is not planned: {one['reason']}" for one in unplanned),
    ]


def _line(one: dict[str, Any]) -> str:
    by = f"{one['plans']} plans"
    if one["graphs"]:
        by = f"{one['graphs']} CUDA graphs" + (f" and {by}" if one["plans"] else "")
    unasked = "" if one["is_asked"] else " (unedited)"
    text = (
        f"{one['name']}{unasked}: {one['planned_calls']} calls by {by}, "
        f"{one['unplanned_calls']} eager"
    )
    reasons = ", ".join(f"{n} {reason}" for reason, n in one["reasons"].items())
    return f"{text} ({reasons})" if reasons else text


def __getattr__(name: str) -> Any:
    """``CannotPlan``, without importing torch before it is asked for."""
    if name != "CannotPlan":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from pai_torchacc.graph.refusals import CannotPlan

    return CannotPlan


register(__name__, NAME, rank=8, options="automatic")
