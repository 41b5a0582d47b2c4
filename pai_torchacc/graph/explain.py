"""What a plan does with a module or function, and what it gains: one look at it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from pai_torchacc.graph.ir import Graph, Value
from pai_torchacc.graph.lowering import Lowered, Step
from pai_torchacc.graph.planned import Planned

_BLOCKS = 7
_BLOCK_S = 0.03


@dataclass(frozen=True)
class Part:
    """One step of a plan."""

    name: str
    """Its operators, as torch calls them."""
    way: str
    """``kernel``: one of ours; ``merged``: one for several operators; ``torch``."""
    row: str | None
    """The kernel's name."""
    where: str
    """``file:line`` of the program."""
    us: float
    """The least time of a few runs."""
    why: str
    """Of ``torch``: why no kernel of ours does it."""


@dataclass(frozen=True)
class Explanation:
    """What :func:`explain` has found; its text is a table."""

    name: str
    reasons: dict[str, int]
    """Why calls ran eagerly; without parts there is no plan."""
    parts: list[Part] = field(default_factory=list)
    eager_us: float = 0.0
    """A call as switches have it now, without a plan; the least of a few blocks."""
    planned_us: float = 0.0
    values_bytes: int = 0
    """What all tensors take that the call makes, but for its results."""
    arena_bytes: int = 0
    """What the plan keeps for those that kernels of ours write."""
    live_peak_bytes: int = 0
    """Of these, what is alive at a time."""
    picture: str = ""
    """The plan in graphviz's language."""

    @property
    def gain(self) -> float:
        """Eager time by planned time; 0 without a plan."""
        return self.eager_us / self.planned_us if self.planned_us else 0.0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "gain": self.gain}

    def save_svg(self, path: str | Path) -> None:
        """Draw the plan.

        Raises
        ------
        RuntimeError
            There is no plan, or no ``dot`` of graphviz on this machine.
        """
        dot = shutil.which("dot")
        if not self.picture or dot is None:
            what = "graphviz is not installed" if self.picture else "there is no plan"
            raise RuntimeError(f"{what}: nothing to draw, or nothing to draw with")
        command = [dot, "-Tsvg", "-o", str(path)]
        subprocess.run(command, input=self.picture, text=True, check=True)

    def __str__(self) -> str:
        if not self.parts:
            reasons = ", ".join(self.reasons) or "no operator of torch's was called"
            return f"{self.name} is not planned: {reasons}"
        total = sum(part.us for part in self.parts) or 1.0
        lines = [
            f"{self.name}: {self.eager_us:.1f} us eager, {self.planned_us:.1f} us by a "
            f"plan of {len(self.parts)} steps, {self.gain:.2f}x"
        ]
        for way in ("merged", "kernel", "torch"):
            share = sum(part.us for part in self.parts if part.way == way) / total
            n = sum(part.way == way for part in self.parts)
            lines.append(f"  {way:6} {share:4.0%} of the time, {n} steps")
        lines.append(
            f"  memory of {self.values_bytes / 2**20:.2f} MiB of tensors: an arena of "
            f"{self.arena_bytes / 2**20:.2f} MiB, {self.live_peak_bytes / 2**20:.2f} "
            "MiB alive at a time; the rest by torch's allocator"
        )
        for part in sorted(self.parts, key=lambda part: -part.us):
            text = f"{part.us:9.1f} us  {part.way:6}  {part.name}"
            more = [part.row or part.why, Path(part.where).name]
            lines.append(f"{text}  ({', '.join(filter(None, more))})")
        return "\n".join(lines)


def explain(planned: Planned, args: Any, kwargs: Any) -> Explanation:
    """Plan a call of its own, run it a few times each way, and tell."""
    with torch.set_grad_enabled(planned.may_train()):
        for _ in range(4):
            planned.entry(*args, **kwargs)
        counted, plans = planned.counts(), planned.plans()
        if planned.graphs.are_asked():
            text = "calls on a CUDA device are captured, and have no table"
            return Explanation(planned.name, {text: 1, **counted["reasons"]})
        if not counted["planned_calls"] or not plans:
            return Explanation(planned.name, counted["reasons"])
        graph, lowered = plans[-1]
        times = planned.times(graph, lowered, args, kwargs, _BLOCKS)
        eager_us, planned_us = _timed(
            lambda: planned.eager(*args, **kwargs),
            lambda: planned.entry(*args, **kwargs),
        )
    return Explanation(
        planned.name,
        counted["reasons"],
        [_part(*pair) for pair in zip(lowered.steps, times, strict=True)],
        eager_us,
        planned_us,
        _values_bytes(graph),
        lowered.arena_bytes,
        lowered.live_peak_bytes,
        "\n".join(_picture(graph, lowered)),
    )


def _part(step: Step, us: float) -> Part:
    way = "torch" if step.kind == "call" else "kernel"
    if len(step.parts) > 1:
        way = "merged"
    why = step.why_stock if way == "torch" else ""
    return Part(step.name, way, step.row, step.parts[0].where, us, _in_words(why))


def _in_words(why: str) -> str:
    return "no kernel of ours has it" if why == "argument" else why


def _values_bytes(graph: Graph) -> int:
    results = graph.result_roots()
    made = {value for node in graph.nodes for value in _all_made(node)} - results
    return sum(value.numel * value.dtype.itemsize for value in made)


def _all_made(node: Any) -> Iterator[Value]:
    for part in node.parts or [node]:
        yield from (value for value in part.outputs if value is not None)


def _timed(*calls: Callable[[], Any]) -> list[float]:
    """The least time of each, in microseconds, of blocks in turn."""
    repeats = []
    for call in calls:
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
        repeats.append(max(1, int(_BLOCK_S / max(seconds, 1e-7))))
    best = [float("inf")] * len(calls)
    for _ in range(_BLOCKS):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats[i]):
                call()
            seconds = (time.perf_counter() - start) / repeats[i]
            best[i] = min(best[i], 1e6 * seconds)
    return best


def _picture(graph: Graph, lowered: Lowered) -> Iterator[str]:
    yield "digraph plan {"
    yield "  node [shape=box, fontname=monospace];"
    makers: dict[Value, str] = {}
    for i, value in enumerate(graph.inputs):
        makers[value] = f"input{i}"
        yield f'  input{i} [label="input {i}", shape=ellipse];'
    for i, step in enumerate(lowered.steps):
        label = step.name.replace('"', "'")
        style = "" if step.kind == "call" else ", style=filled, fillcolor=lightblue"
        yield f'  step{i} [label="{label}"{style}];'
        for maker in sorted({makers[v.root] for v in step.inputs if v.root in makers}):
            yield f"  {maker} -> step{i};"
        written = [value for value in step.outputs if value is not None]
        # A call in place goes on with what it has written over.
        for value in written or [v.root for v in step.inputs[:1]]:
            makers[value] = f"step{i}"
    for i, value in enumerate(graph.results):
        yield f'  result{i} [label="result {i}", shape=ellipse];'
        if value.root in makers:
            yield f"  {makers[value.root]} -> result{i};"
    yield "}"
