"""Modules whose calls go by plans, and what their plans did."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.graph import planned
from pai_torchacc.graph.planned import Planned


def planned_of(target: Any) -> Planned:
    """What plans the calls of an optimized module or function."""
    entry = getattr(target, "_compiled_call_impl", None)
    if entry is None:
        return target.__ptac_planned__
    return next(one for one in planned.everything if one.entry is entry)


def counts(target: Any) -> tuple[int, int]:
    """Its plans, and how many calls they have made."""
    found = planned_of(target).counts()
    return found["plans"], found["planned_calls"]


def kinds(target: Any) -> list[str]:
    """How the steps of its only plan run."""
    ((_, lowered),) = planned_of(target).plans()
    return [step.kind for step in lowered.steps]


def steps(target: Any) -> list[str]:
    """What they are called."""
    ((_, lowered),) = planned_of(target).plans()
    return [step.name for step in lowered.steps]


def reasons(target: Any) -> list[str]:
    """Why its calls run eagerly."""
    return [refusal.reason for refusal in planned_of(target).refused.values()]


def warm(module: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Optimize a module, and have these calls of it be planned."""
    ptac.optimize(module, on_refusal="ignore")
    with torch.no_grad():
        for _ in range(2):
            module(*args, **kwargs)
    assert counts(module) == (1, 1)


def by_plan(module: Any, call: Callable[[], Any]) -> Any:
    """What a call gives that has to go by a plan."""
    _, before = counts(module)
    with torch.no_grad():
        result = call()
    _, after = counts(module)
    assert after == before + 1
    return result


def eagerly(module: Any, call: Callable[[], Any]) -> Any:
    """What a call gives that may not go by a plan."""
    _, before = counts(module)
    result = call()
    _, after = counts(module)
    assert after == before
    return result


def twin(module: nn.Module) -> nn.Module:
    """The same module, not optimized."""
    return copy.deepcopy(module)


def close(ours: Any, theirs: Any) -> None:
    """Two results within a few roundings."""
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
