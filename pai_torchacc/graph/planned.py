"""A module or function whose calls go by plans: recorded once, then replayed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pai_torchacc import _frames
from pai_torchacc.graph import passes
from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.lowering import Lowered, lower
from pai_torchacc.graph.recording import Recorder
from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.signature import Described, describe, key_of, results_of

OnRefusal = Literal["warn", "raise", "ignore"]

MOST_PLANS = 8
"""For calls of one module or function that differ; more are made eagerly."""

_HOMES = ("_parameters", "_buffers")
"""Where modules have tensors, as ``graph/guards.h`` numbers them."""

_lock = threading.RLock()
"""One recording at a time."""

everything: weakref.WeakSet[Planned] = weakref.WeakSet()
"""All that is alive, for the report."""


@dataclass
class _Recorded:
    """One kind of call."""

    described: tuple[Described, Described]
    graph: Graph
    rebuild: Callable[[Any], Any] | None
    lowered: Lowered | None = None


class Planned:
    """The plans of a module or function.

    Parameters
    ----------
    c : module
        The extension.
    eager : callable
        What calls do without a plan.
    module : Module, optional
        Whose tree is under guard.
    on_refusal : {"warn", "raise", "ignore"}
        What a call does that cannot be planned, the first time.
    """

    def __init__(
        self,
        c: Any,
        eager: Callable[..., Any],
        module: nn.Module | None,
        on_refusal: OnRefusal,
    ):
        self._c = c
        self._eager = eager
        self._module = module
        self.on_refusal = on_refusal
        self.name = _name_of(module if module is not None else eager)
        self._recorded: dict[Any, _Recorded] = {}
        self.refused: dict[Any, CannotPlan] = {}
        self._generation = -1
        self.entry = c.planned_make(eager, self._miss)
        self._reset()
        everything.add(self)

    def counts(self) -> dict[str, Any]:
        """Plans, calls by plan, others, runs that were given back, and why not."""
        plans, hits, misses, given_back, aside = self._c.planned_counts(self.entry)
        return {
            "plans": plans,
            "planned_calls": hits,
            "unplanned_calls": misses + sum(aside.values()),
            "given_back": given_back,
            "reasons": {
                **aside,
                **{refusal.reason: 1 for refusal in self.refused.values()},
            },
        }

    def plans(self) -> list[tuple[Graph, Lowered]]:
        """Those that are ready now."""
        ready = self._recorded.values()
        return [(one.graph, one.lowered) for one in ready if one.lowered is not None]

    # --- a call without a plan

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        with _lock:
            if not self._c.planned_holds(self.entry):
                self._recorded.clear()
                self.refused.clear()
                self._reset()
            elif self._generation != self._c.chooser_generation():
                self._reset()
            plan = self._planner(args, kwargs)
            if plan is None:
                return self._eager(*args, **kwargs)
            return plan()

    def _reset(self) -> None:
        """Put modules under guard as they are, and forget plans, but not recordings."""
        modules = [] if self._module is None else list(self._module.modules())
        self._c.planned_reset(self.entry, modules)
        self._generation = self._c.chooser_generation()
        for recorded in self._recorded.values():
            recorded.lowered = None

    def _planner(self, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """What makes the call, and plans it; None where it should just be made."""
        tensors: list[Tensor] = []
        try:
            described = describe(args, tensors), describe(kwargs, tensors)
            shares = len({t.untyped_storage()._cdata for t in tensors}) < len(tensors)
            key = key_of(described, tensors), torch.is_grad_enabled(), shares
        except CannotPlan as refusal:
            self._refuse(str(refusal), refusal)
            return None
        if key in self.refused:
            return None
        if torch.is_grad_enabled() and self._is_learnt(tensors):
            return None
        if (recorded := self._recorded.get(key)) is not None:
            if recorded.lowered is None:
                self._lower(recorded)  # for the next call
            return None
        if len(self._recorded) >= MOST_PLANS:
            return None
        return lambda: self._record(key, described, tensors, args, kwargs)

    def _is_learnt(self, tensors: list[Tensor]) -> bool:
        of_module = () if self._module is None else self._module.parameters()
        return any(t.requires_grad for t in (*tensors, *of_module))

    def _record(
        self,
        key: Any,
        described: tuple[Described, Described],
        tensors: list[Tensor],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Make the call, look at it, and plan its like."""
        before = _attributes(self._module)
        try:
            has_recurrent = self._module is not None and any(
                isinstance(module, nn.RNNBase) for module in self._module.modules()
            )
            recorder = Recorder(tensors, _tensors_of(self._module), has_recurrent)
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return self._eager(*args, **kwargs)
        with recorder:
            returned = self._eager(*args, **kwargs)
        try:
            if changed := _changed(before, _attributes(self._module)):
                raise CannotPlan(f"forward sets {changed}")
            results, rebuild = results_of(returned)
            graph = recorder.finish(results)
            if not graph.nodes:
                raise CannotPlan("no operator of torch's was called")
            passes.run_all(graph)
            recorded = _Recorded(described, graph, rebuild)
            self._lower(recorded)
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return returned
        self._recorded[key] = recorded
        return returned

    def _lower(self, recorded: _Recorded) -> None:
        recorded.lowered = lower(recorded.graph, self._c)
        held = tuple(tensor for tensor, _ in recorded.graph.held)
        places = tuple(
            (module, _HOMES.index(home), name)
            for module, home, name in recorded.graph.places
        )
        plan, rebuild = recorded.lowered.plan, recorded.rebuild
        self._c.planned_add(self.entry, recorded.described, places, held, plan, rebuild)

    def _refuse(self, key: Any, refusal: CannotPlan) -> None:
        self.refused[key] = refusal
        text = f"{self.name} runs eagerly: {refusal}"
        if self.on_refusal == "raise":
            raise refusal
        if self.on_refusal == "warn":
            _frames.warn_once(f"pai_torchacc: {text}", key=text)


def _name_of(what: Any) -> str:
    if isinstance(what, nn.Module):
        return type(what).__name__
    return str(getattr(what, "__qualname__", None) or type(what).__name__)


def _tensors_of(module: nn.Module | None) -> dict[tuple[int, str, str], Tensor]:
    """All parameters and buffers by their places."""
    found = {}
    modules = [] if module is None else module.modules()
    for i, one in enumerate(modules):
        for home in _HOMES:
            for name, tensor in one.__dict__[home].items():
                if tensor is not None:
                    found[i, home, name] = tensor
    return found


def _attributes(module: nn.Module | None) -> dict[tuple[int, str], int]:
    """What each module has under each name, by identity."""
    modules = [] if module is None else module.modules()
    return {
        (i, name): id(value)
        for i, one in enumerate(modules)
        for name, value in one.__dict__.items()
    }


def _changed(before: dict[Any, int], after: dict[Any, int]) -> str:
    """The name of an attribute that is another one."""
    for key in before.keys() | after.keys():
        if before.get(key) != after.get(key):
            return f"the attribute {key[1]}"
    return ""
