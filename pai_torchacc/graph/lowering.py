"""From a graph to a plan of the extension: which steps, and where values lie.

A node becomes a step that runs a row of ours where the chooser has one for it now, with
as much of what it merges as the row takes; else a call of torch's own function.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pai_torchacc.graph.choosing import Chooser
from pai_torchacc.graph.describing import Plan, views_in
from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.steps import RowsChanged, Step
from pai_torchacc.graph.storage import Storage


@dataclass
class Lowered:
    """A plan that can be run, and what it is made of."""

    plan: Any
    steps: list[Step]
    arena_bytes: int
    live_peak_bytes: int
    """Of the values in the arena: the most that are alive at a time."""


def lower(graph: Graph, c: Any) -> Lowered:
    """Decide how each node runs, and make the plan.

    Raises
    ------
    RowsChanged
        Meanwhile another thread has switched what the steps were chosen by.
    """
    steps = Chooser(graph, c).steps()
    storage = Storage(graph, steps)
    plan = Plan(graph, c, views_in(graph, steps), storage)
    for step in steps:
        reason = plan.add(step)
        if reason is not None:
            raise RowsChanged(f"{step.name} was taken and is not any more: {reason}")
        plan.add_otherwise(step)
    return Lowered(plan.plan, steps, storage.arena_bytes, storage.live_peak_bytes)
