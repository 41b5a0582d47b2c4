"""A module or function whose calls go by plans: recorded once, then replayed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from pai_torchacc import _frames
from pai_torchacc.graph import passes
from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.lowering import Lowered, RowsChanged, lower
from pai_torchacc.graph.recording import Leave, Recorder
from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.signature import (
    Described,
    describe,
    is_dense,
    key_of,
    results_of,
)

OnRefusal = Literal["warn", "raise", "ignore"]

MOST_PLANS = 8
"""For calls of one module or function that differ; more are made eagerly."""

MOST_REFUSED = 64
"""Kinds of calls that are remembered as such that cannot be planned."""

_HOMES = ("_parameters", "_buffers")
"""Where modules have tensors, as ``graph/guards.h`` numbers them."""

Place = tuple[int, str, str]
"""A module of those under guard, one of _HOMES, and a name there."""

everything: weakref.WeakSet[Planned] = weakref.WeakSet()
"""All that is alive, for the report."""


@dataclass
class _Recorded:
    """One kind of call."""

    described: tuple[Described, Described]
    graph: Graph
    rebuild: Callable[[Any], Any] | None
    lowered: dict[Any, Lowered] = field(default_factory=dict)
    """By circumstances."""
    is_merged: bool = False
    """Our passes have been over the graph."""


class Planned:
    """The plans of a module or function.

    Parameters
    ----------
    c : module
        The extension.
    eager : callable
        What calls do without a plan.
    roots : list of Module
        Whose trees are under guard.
    name : str
        For the report.
    on_refusal : {"warn", "raise", "ignore"}
        What a call does that cannot be planned, the first time.
    is_listed : bool
        Have the report tell of it.
    """

    def __init__(
        self,
        c: Any,
        eager: Callable[..., Any],
        roots: list[nn.Module],
        name: str,
        on_refusal: OnRefusal,
        is_listed: bool = True,
    ):
        self._c = c
        self.eager = eager
        self._roots = roots
        self.on_refusal = on_refusal
        self.name = name
        self._recorded: dict[Any, _Recorded] = {}
        self.refused: dict[Any, CannotPlan] = {}
        self._generation = -1
        self._given_up: CannotPlan | None = None
        self._lock = threading.Lock()
        self.entry = c.planned_make(eager, self._miss)
        self._reset()
        if is_listed:
            everything.add(self)

    def counts(self) -> dict[str, Any]:
        """Plans, calls by plan, others, and why these were none."""
        plans, hits, misses, given_back, busy, aside = self._c.planned_counts(
            self.entry
        )
        reasons = dict(aside)
        if busy:
            reasons["another thread ran the plan"] = busy
        for refusal in list(self.refused.values()):
            reasons[refusal.reason] = reasons.get(refusal.reason, 0) + refusal.n_calls
        return {
            "plans": plans,
            "planned_calls": hits,
            "unplanned_calls": misses + busy + sum(aside.values()),
            "given_back": given_back,
            "reasons": reasons,
        }

    def times(
        self, graph: Graph, lowered: Lowered, args: Any, kwargs: Any, n_runs: int
    ) -> list[float]:
        """The least time of each step of a plan, in microseconds, of so many runs."""
        tensors: list[Tensor] = []
        describe(args, tensors)
        describe(kwargs, tensors)
        of_modules = _tensors_of(self._modules())
        given = (
            *tensors,
            *(of_modules[place] for place in graph.places),
            *(tensor for tensor, _ in graph.held),
        )
        runs = [self._c.plan_times(lowered.plan, given) for _ in range(n_runs)]
        return [min(times) / 1e3 for times in zip(*filter(None, runs), strict=True)]

    def count_anew(self) -> None:
        """Begin counting calls."""
        self._c.planned_count_anew(self.entry)
        for refusal in list(self.refused.values()):
            refusal.n_calls = 0

    def plans(self) -> list[tuple[Graph, Lowered]]:
        """Those that are ready, under whichever circumstances."""
        return [
            (recorded.graph, lowered)
            for recorded in list(self._recorded.values())
            for lowered in list(recorded.lowered.values())
        ]

    # --- a call without a plan

    def _miss(self, *args: Any, **kwargs: Any) -> Any:
        if not self._lock.acquire(blocking=False):
            return self.eager(*args, **kwargs)
        try:
            record = self._prepare(args, kwargs)
        finally:
            self._lock.release()
        return record() if record else self.eager(*args, **kwargs)

    def _reset(self) -> None:
        """Put modules under guard as they are, and forget plans, but not recordings."""
        modules = self._modules()
        self._is_odd = not all(
            vars(module).keys() >= {*_HOMES, "_modules", "training"}
            for module in modules
        )
        self._c.planned_reset(self.entry, [] if self._is_odd else modules)
        self._generation = self._c.chooser_generation()
        for recorded in self._recorded.values():
            recorded.lowered.clear()

    def _modules(self) -> list[nn.Module]:
        trees = (module for root in self._roots for module in root.modules())
        return list(dict.fromkeys(trees))

    def _prepare(self, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """What makes the call, and plans it; None where it should just be made."""
        if self._given_up is not None:
            self._given_up.n_calls += 1
            return None
        if not self._c.planned_holds(self.entry):
            self._recorded.clear()
            self._reset()
            if not self._c.planned_holds(self.entry):
                text = "a module has hooks, or a class that changes"
                self._refuse("hooks", CannotPlan(text))
                return None
            self.refused.clear()
        elif self._generation != self._c.chooser_generation():
            self._reset()
        if self._is_odd:
            self._refuse("odd", CannotPlan("a module goes ways of its own"))
            return None
        if torch.is_grad_enabled() and self._learns():
            return None
        tensors: list[Tensor] = []
        of_modules = _tensors_of(self._modules())
        try:
            described = describe(args, tensors), describe(kwargs, tensors)
        except CannotPlan as refusal:
            self._refuse(str(refusal), refusal)
            return None
        key = (
            key_of(described, tensors, of_modules),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
        )
        if key in self.refused:
            self.refused[key].n_calls += 1
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return None
        if (recorded := self._recorded.get(key)) is not None:
            self._plan(key, recorded, of_modules)  # for the next call like it
            return None
        if len(self._recorded) >= MOST_PLANS:
            return None
        return lambda: self._record(key, described, tensors, of_modules, args, kwargs)

    def _learns(self) -> bool:
        """A gradient of a module's parameter would be asked for."""
        return any(
            parameter.requires_grad
            for root in self._roots
            for parameter in root.parameters()
        )

    def _record(
        self,
        key: Any,
        described: tuple[Described, Described],
        tensors: list[Tensor],
        of_modules: dict[Place, Tensor],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Make the call, look at it, and plan its like."""
        modules = self._modules()
        before = _State(modules)
        try:
            recorder = Recorder(tensors, of_modules, _may_see_functions(modules))
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return self.eager(*args, **kwargs)
        try:
            with recorder:
                returned = self.eager(*args, **kwargs)
        except Leave as refusal:
            self._refuse(key, refusal)
            return self.eager(*args, **kwargs)
        try:
            if recorder.refusal is not None:
                raise recorder.refusal
            if (changed := before.change()) is not None:
                # Guards would find that at each call.
                self._given_up = CannotPlan(f"forward changes {changed}")
                raise self._given_up
            if (describe(args, []), describe(kwargs, [])) != described:
                raise CannotPlan("forward changes its arguments")
            results, rebuild = results_of(returned)
            graph = recorder.finish(results)
            if not graph.nodes:
                raise CannotPlan("no operator of torch's was called")
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return returned
        passes.run_of_users(graph)
        with self._lock:
            recorded = _Recorded(described, graph, rebuild)
            self._plan(key, recorded, of_modules)
            self._recorded[key] = recorded
        return returned

    def _plan(
        self, key: Any, recorded: _Recorded, of_modules: dict[Place, Tensor]
    ) -> None:
        """Plan for circumstances like now; a fault of ours is a refusal and is told."""
        try:
            if not recorded.is_merged:
                passes.run_ours(recorded.graph)
                recorded.is_merged = True
            self._lower(recorded, of_modules)
        except Exception as error:
            self._refuse(key, CannotPlan(f"no plan could be made: {error!r}"))

    def _lower(self, recorded: _Recorded, of_modules: dict[Place, Tensor]) -> None:
        """Make a plan for circumstances like now, unless there is one."""
        now, generation = self._c.circumstances(), self._c.chooser_generation()
        if now in recorded.lowered or len(recorded.lowered) >= MOST_PLANS:
            return
        try:
            with torch.inference_mode(False), torch.no_grad():
                lowered = lower(recorded.graph, self._c)
        except RowsChanged:
            return
        graph = recorded.graph
        is_added = self._c.planned_add(
            self.entry,
            recorded.described,
            _places(list(graph.places), of_modules),
            tuple(tensor for tensor, _ in graph.held),
            lowered.plan,
            recorded.rebuild,
            generation,
        )
        if is_added:
            recorded.lowered[now] = lowered

    def _refuse(self, key: Any, refusal: CannotPlan) -> None:
        if key in self.refused:
            self.refused[key].n_calls += 1
            return
        if len(self.refused) >= MOST_REFUSED:
            del self.refused[next(iter(self.refused))]
        self.refused[key] = refusal.with_traceback(None)
        refusal.__context__ = None  # which would keep frames, and tensors there
        text = f"{self.name} runs eagerly: {refusal}"
        if self.on_refusal == "raise":
            raise refusal
        if self.on_refusal == "warn":
            _frames.warn_once(f"pai_torchacc: {text}", key=text)


class _Address(int):
    """Where a tensor's data lies."""


class _State:
    """What modules hold, so that a change shows; it is kept alive meanwhile."""

    def __init__(self, modules: list[nn.Module]):
        self._modules = modules
        self._before = [_held_by(module) for module in modules]

    def change(self) -> str | None:
        """What is another object, or holds another one."""
        for module, before in zip(self._modules, self._before, strict=True):
            after = _held_by(module)
            for what in before.keys() | after.keys():
                one, other = before.get(what), after.get(what)
                if isinstance(one, _Address) and one == other:
                    continue
                if one is not other:
                    return " of ".join(str(part) for part in what)
        return None


def _held_by(module: nn.Module) -> dict[tuple[Any, ...], Any]:
    """By what it is called: attributes, what they hold, gradients and data."""
    found: dict[tuple[Any, ...], Any] = {}
    for home in _HOMES:
        for name, tensor in module.__dict__[home].items():
            if tensor is not None and is_dense(tensor):
                found["the gradient", name] = tensor.grad
                found["the data", name] = _Address(tensor.data_ptr())
    for name, value in module.__dict__.items():
        found[f"the attribute {name}",] = value
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        found.update({("item", _short(key), name): item for key, item in items})
    return found


def _short(key: Any) -> Any:
    """A key of the program's, without calling anything of it."""
    return key if type(key) in (str, int) else id(key)


def _may_see_functions(modules: list[nn.Module]) -> bool:
    """Layers of attention go another way where somebody looks at functions."""
    return not any(
        isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer)
        for module in modules
    )


def _places(used: list[Place], of_modules: dict[Place, Tensor]) -> tuple[Any, ...]:
    """As the extension wants them; of a tied tensor all its places are looked at."""
    found = [(module, _HOMES.index(home), name, -1) for module, home, name in used]
    for i, place in enumerate(used):
        found += [
            (module, _HOMES.index(home), name, i)
            for (module, home, name), tensor in of_modules.items()
            if tensor is of_modules[place] and (module, home, name) != place
        ]
    return tuple(found)


def _tensors_of(modules: list[nn.Module]) -> dict[Place, Tensor]:
    """All parameters and buffers by their places."""
    return {
        (i, home, name): tensor
        for i, module in enumerate(modules)
        for home in _HOMES
        for name, tensor in module.__dict__[home].items()
        if tensor is not None
    }
