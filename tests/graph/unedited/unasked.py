"""Modules that are planned unasked, and what became of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

import pai_torchacc as ptac
from pai_torchacc import graph
from pai_torchacc.graph.unedited import automatic

UNTIL_PLANNED = 5
"""Calls: two that are counted, two that are recorded, one by plan."""


@contextmanager
def unedited() -> Iterator[None]:
    """Unedited programs are planned within it."""
    with ptac.enable_graph_optimization():
        yield


def plans_of(module: nn.Module) -> automatic.Automatic | None:
    """What plans a module unasked, if anything does."""
    return graph._unasked(module)  # type: ignore[no-any-return]


def hits(module: nn.Module) -> int:
    """Calls that its plans have made."""
    found = plans_of(module)
    return found.counts()["planned_calls"] if found is not None else 0


def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module until it would be planned."""
    for _ in range(UNTIL_PLANNED):
        result = module(*args, **kwargs)
    return result


def by_plan(module: nn.Module, call: Callable[[], Any]) -> Any:
    """What a call gives that has to go by a plan."""
    before = hits(module)
    result = call()
    assert hits(module) == before + 1, refusals()
    return result


def refusals() -> list[tuple[str, str]]:
    """Classes of modules that are not planned, and why."""
    return list(automatic.refused)
