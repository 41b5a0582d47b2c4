"""A module or function whose calls go by plans: recorded once, then replayed."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from pai_torchacc import _frames
from pai_torchacc.graph import passes
from pai_torchacc.graph.cuda.site import Graphs
from pai_torchacc.graph.ir import Graph
from pai_torchacc.graph.lowering import Lowered, RowsChanged, lower
from pai_torchacc.graph.memories import HOMES, Place, tensors_of
from pai_torchacc.graph.names import Names, names_of, owner_of
from pai_torchacc.graph.recording import Leave, Recorder
from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.signature import (
    Containers,
    Described,
    describe,
    key_of,
    objects_in,
    results_of,
)
from pai_torchacc.graph.state import State

if TYPE_CHECKING:
    from pai_torchacc.graph.unedited.observing import Observer

OnRefusal = Literal["warn", "raise", "ignore"]

MOST_PLANS = 8
"""For calls of one module or function that differ; more are made eagerly."""

MOST_REFUSED = 64
"""Kinds of calls that are remembered as such that cannot be planned."""

MOST_REFUSED_ON_END = 3
"""Calls that are looked at, one after another, though none can be planned."""

MOST_RESTED = 256
"""Calls that nobody looks at, behind such that could not be planned."""

_MOST_GIVEN = 16
"""Of modules and optimizers among arguments, which are under guard as well."""

GRADIENTS_HOME = "gradients"
"""Behind these: the gradients of the first."""

everything: weakref.WeakSet[Planned] = weakref.WeakSet()
"""All that is alive, for the report."""


@dataclass
class _Recorded:
    """One kind of call."""

    described: tuple[Described, Described]
    graph: Graph
    rebuild: Callable[[Any], Any] | None
    learnt: tuple[Any, ...] | None
    """A training step's parameters, as the extension wants them."""
    lowered: dict[Any, Lowered] = field(default_factory=dict)
    """By circumstances."""
    is_merged: bool = False
    """Our passes have been over the graph."""


class Planned:
    """The plans of a module or function that somebody has asked to plan.

    Parameters
    ----------
    c : module
        The extension.
    eager : callable
        What calls do without a plan.
    root : Module or None
        Whose tree is under guard; else what ``eager`` reads by name is.
    name : str
        For the report.
    on_refusal : {"warn", "raise", "ignore"}
        What a call does that cannot be planned, the first time.
    is_listed : bool
        Have the report tell of it.
    is_frozen : bool
        Parameters and buffers stay as they are.
    is_functional : bool
        ``eager`` is a graph of operators alone, whose caller knows which results lie in
        its arguments' memory, and of two that overlap neither is written.
    """

    is_asked = True
    most_changes = 8
    """Of modules and names, call by call, after which their end is waited for."""

    def __init__(
        self,
        c: Any,
        eager: Callable[..., Any],
        root: nn.Module | None,
        name: str,
        on_refusal: OnRefusal,
        is_listed: bool = True,
        is_functional: bool = False,
        is_frozen: bool = False,
    ):
        self._c = c
        self.eager = eager
        self._root = root
        self._is_functional = is_functional
        self._is_frozen = is_frozen
        self._names = Names()
        self._given: list[Any] = []
        self.on_refusal = on_refusal
        self.name = name
        self._recorded: dict[Any, _Recorded] = {}
        self.refused: dict[Any, CannotPlan] = {}
        self._first: set[Any] = set()
        self._n_learning = 0
        """Calls with a gradient to come."""
        self._only_computes = False
        """It leaves backward() to others, and is no step."""
        self._generation = -1
        self._n_refused = self._n_changes = self._n_hits = 0
        self._latest: CannotPlan | None = None
        """For which calls rest."""
        self._lock = threading.Lock()
        self.entry = c.planned_make(eager, self._miss, None if self.is_asked else root)
        self.graphs = Graphs(
            eager,
            lambda: c.planned_holds(self.entry),
            self._modules,
            self._objects,
            self._refuse,
            c.chooser_generation,
        )
        self._reset()
        if is_listed:
            everything.add(self)

    def counts(self) -> dict[str, Any]:
        """Plans, calls by plan, others, and why these were none."""
        counted = self._c.planned_counts(self.entry)
        plans, hits, misses, given_back, busy, rested, aside = counted
        reasons = dict(aside)
        if busy:
            reasons["another thread ran the plan"] = busy
        for refusal in list(self.refused.values()):
            reasons[refusal.reason] = reasons.get(refusal.reason, 0) + refusal.n_calls
        if self._n_learning:
            reasons["a gradient is to come"] = self._n_learning
        for reason, n in self.graphs.n_passed.items():
            reasons[reason] = reasons.get(reason, 0) + n
        if rested and self._latest is not None:
            reasons[self._latest.reason] = reasons.get(self._latest.reason, 0) + rested
        return {
            "plans": plans,
            "graphs": len(self.graphs),
            "planned_calls": hits + self.graphs.n_replays,
            "unplanned_calls": misses
            - self.graphs.n_replays
            + busy
            + sum(aside.values()),
            "given_back": given_back,
            "reasons": reasons,
        }

    def times(
        self, graph: Graph, lowered: Lowered, args: Any, kwargs: Any, n_runs: int
    ) -> list[float]:
        """The least time of each step of a plan, in microseconds, of so many runs."""
        tensors: list[Tensor] = []
        describe(args, tensors, self._owner_of(args))
        describe(kwargs, tensors)
        runs = []
        for _ in range(n_runs):
            of_modules = tensors_of(self._modules())
            of_modules |= _gradients_of(_learnt_in(of_modules))
            given = (
                *tensors,
                *(of_modules[place] for place in graph.places),
                *(tensor for tensor, _ in graph.held),
            )
            with torch.no_grad():
                runs.append(self._c.plan_times(lowered.plan, given))
        return [min(times) / 1e3 for times in zip(*filter(None, runs), strict=True)]

    def count_anew(self) -> None:
        """Begin counting calls."""
        self._c.planned_count_anew(self.entry)
        self.graphs.count_anew()
        self._n_learning = 0
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
            record = self.graphs.find(args, kwargs, self._owner_of)
            if record is None:
                record = self._prepare(args, kwargs)
            else:
                self._n_refused = 0
        finally:
            self._lock.release()
        return record() if record else self.eager(*args, **kwargs)

    def _reset(self) -> None:
        """Put modules under guard as they are, and forget plans, but not recordings."""
        if self._root is None:
            self._names = names_of(self.eager, self._given)
        modules = self._modules()
        self._is_odd = not all(
            vars(module).keys() >= {*HOMES, "_modules", "training"}
            for module in modules
        )
        self._c.planned_reset(
            self.entry, [] if self._is_odd else modules, self._names.bindings
        )
        self._generation = self._c.chooser_generation()
        for recorded in self._recorded.values():
            recorded.lowered.clear()

    def _modules(self) -> list[nn.Module]:
        roots = self._names.modules if self._root is None else [self._root]
        trees = (module for root in roots for module in root.modules())
        return list(dict.fromkeys(trees))

    def _prepare(self, args: Any, kwargs: Any) -> Callable[[], Any] | None:
        """What makes the call, and plans it; None where it should just be made."""
        if not self._is_renewed(args, kwargs):
            return None
        if (why := self._why_never()) is not None:
            self._refuse(why, CannotPlan(why))
            return None
        learns = torch.is_grad_enabled() and self._learns()
        if learns and (self._root is not None or self._only_computes):
            self._n_learning += 1
            return None
        tensors: list[Tensor] = []
        of_modules = tensors_of(self._modules())
        learnt = _learnt_in(of_modules) if learns else None
        of_modules |= _gradients_of(learnt or {})
        try:
            owner = self._owner_of(args)
            described = describe(args, tensors, owner), describe(kwargs, tensors)
        except CannotPlan as refusal:
            self._refuse(str(refusal), refusal)
            return None
        key = (
            key_of(described, tensors, of_modules),
            torch.is_grad_enabled(),
            torch.get_default_dtype(),
            learnt and tuple(_as_learnt(learnt)),
        )
        refusal = self.refused.get(key)
        if refusal is not None and not refusal.is_of_first:
            self._refuse(key, refusal)
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return None
        try:
            is_aside = self._is_functional
            device = None if is_aside else self.graphs.device_of(tensors, of_modules)
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return None
        if (recorded := self._recorded.get(key)) is not None:
            self._plan(key, recorded, of_modules)  # for the next call like it
            return None
        if sys.getprofile() is not None:
            return None
        if device is None and len(self._recorded) >= MOST_PLANS:
            self._refuse("kinds", CannotPlan(f"of more than {MOST_PLANS} kinds"))
            return None
        if self._has_other_names():
            return self._prepare(args, kwargs)
        call = Call(key, described, tensors, of_modules, learnt, args, kwargs)
        return self._way_of(call, device)

    def _way_of(
        self, call: Call, device: torch.device | None
    ) -> Callable[[], Any] | None:
        """What makes a call that is looked at, on a CUDA device or on the CPU."""
        if device is not None:
            return self.graphs.prepare(call, device)
        return lambda: self._record(call)

    def _owner_of(self, args: Any) -> Any:
        return owner_of(self.eager, args) if self._root is None else None

    def _has_other_names(self) -> bool:
        """There are names that were not there, and all is under guard anew."""
        if self._root is not None:
            return False
        if self._names.is_like(names_of(self.eager, self._given)):
            return False
        self._recorded.clear()
        self.graphs.clear()
        self._reset()
        return True

    def may_train(self) -> bool:
        """It is a function that a gradient's parameter is known of."""
        return self._root is None and self._learns()

    def _why_never(self) -> str | None:
        if not self._names.are_all:
            return "it reads more names than are compared"
        return "a module goes ways of its own" if self._is_odd else None

    def _is_renewed(self, args: Any, kwargs: Any) -> bool:
        """Have all be under guard as it is; False where that is in vain."""
        if not self._c.planned_holds(self.entry) or self._take_given(args, kwargs):
            self._begin_anew()
            if not self._c.planned_holds(self.entry):
                text = "a module has hooks, or a class that changes"
                self._refuse("hooks", CannotPlan(text))
                return False
            self.refused.clear()
            self._n_refused = 0
            return not self._is_restless()
        if self._generation != self._c.chooser_generation():
            self._reset()
        return True

    def _begin_anew(self) -> None:
        """Something else is under guard now, or the same has changed."""
        self._recorded.clear()
        self.graphs.clear()
        self._reset()

    def _is_restless(self) -> bool:
        """Modules or names change from call to call: no plan was ever used."""
        n_hits = self._c.planned_counts(self.entry)[1] + self.graphs.n_replays
        self._n_changes = self._n_changes + 1 if n_hits == self._n_hits else 0
        self._n_hits = n_hits
        if self._n_changes < self.most_changes:
            return False
        text = "modules, or names that it reads, change from call to call"
        self._refuse("changes", CannotPlan(text))
        self._latest = self.refused["changes"]
        self._c.planned_rest(self.entry, MOST_RESTED)
        return True

    def _take_given(self, args: Any, kwargs: Any) -> bool:
        """Have modules and optimizers among arguments be under guard; if any is new."""
        given = objects_in((args, kwargs))
        if (owner := self._owner_of(args)) is not None:
            given.append(owner)
        known = set(map(id, self._given))
        new = [one for one in given if id(one) not in known]
        if self._root is None and new:
            self._given = [*self._given, *new][-_MOST_GIVEN:]
        return self._root is None and bool(new)

    def _learns(self) -> bool:
        """A gradient of a module's parameter would be asked for."""
        return any(
            parameter is not None and parameter.requires_grad
            for module in self._modules()
            for parameter in vars(module)["_parameters"].values()
        )

    def _record(self, call: Call) -> Any:
        """Make the call, look at it, and plan its like."""
        key, args, kwargs = call.key, call.args, call.kwargs
        modules = self._modules()
        before = State(modules, is_step=call.learnt is not None)
        learning = _learning(call.learnt)
        containers = Containers((args, kwargs))
        observer = self._observer()
        try:
            recorder = Recorder(
                call.tensors,
                call.of_modules,
                call.learnt is not None or _may_see_functions(modules),
                call.learnt,
                self._objects(args, kwargs),
                self._is_functional,
                observer,
            )
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return self.eager(*args, **kwargs)
        try:
            with recorder:
                returned = self.eager(*args, **kwargs)
        except Leave as refusal:
            recorder.forget()
            self._refuse(key, refusal)
            return self.eager(*args, **kwargs)
        try:
            if observer is not None:
                observer.check(modules)
            if recorder.refusal is not None:
                raise recorder.refusal
            if (changed := before.change()) is not None:
                raise CannotPlan(f"forward changes {changed}")
            if not self._c.planned_holds(self.entry):
                raise CannotPlan("a name or a container changes")
            if _learning(call.learnt) != learning:
                raise CannotPlan("the step changes what learns, or grad mode")
            now = describe(args, [], self._owner_of(args)), describe(kwargs, [])
            containers.check(now == call.described, returned)
            results, rebuild = results_of(returned, call.learnt is not None)
            graph = recorder.finish(results)
            if not graph.nodes:
                raise CannotPlan("no operator of torch's was called")
            self._freeze(graph, call)
            if observer is not None and not self._prove(
                call, observer, graph, returned
            ):
                return returned
        except CannotPlan as refusal:
            self._refuse(key, refusal)
            return returned
        finally:
            recorder.forget()
        passes.run_of_users(graph)
        learnt = call.learnt and call.key[-1]
        with self._lock:
            recorded = _Recorded(call.described, graph, rebuild, learnt)
            self._plan(key, recorded, call.of_modules)
            self._recorded[key] = recorded
            self.refused.pop(key, None)
            self._n_refused = 0
        return returned

    def _freeze(self, graph: Graph, call: Call) -> None:
        """Read the modules' tensors no more, if that was promised."""
        if not self._is_frozen:
            return
        if call.learnt is not None or graph.has_effects():
            raise CannotPlan("what trains cannot be frozen")
        graph.freeze(call.of_modules)

    def _observer(self) -> Observer | None:
        """What is told of all that a recorded call executes, if anything is."""
        return None

    def _prove(self, call: Call, observer: Observer, graph: Graph, result: Any) -> bool:
        """The call may be planned; False: a later one may."""
        return True

    def _objects(self, args: Any, kwargs: Any) -> list[Any]:
        """What the call reaches by name and by argument."""
        named = [object for _, _, *found in self._names.bindings for object in found]
        return [*named, *objects_in((args, kwargs))]

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
        is_added = self._c.planned_add(
            self.entry,
            recorded.described,
            _places(list(recorded.graph.places), of_modules),
            tuple(tensor for tensor, _ in recorded.graph.held),
            lowered.plan,
            recorded.rebuild,
            generation,
            recorded.learnt,
        )
        if is_added:
            recorded.lowered[now] = lowered

    def _refuse(self, key: Any, refusal: CannotPlan) -> None:
        if refusal.is_silent:
            self._only_computes = True
            return
        self._n_refused += 1
        n_more = min(self._n_refused - MOST_REFUSED_ON_END, 16)
        if n_more > 0 and not len(self.graphs):
            self._c.planned_rest(self.entry, min(2**n_more, MOST_RESTED))
        self._latest = self.refused.get(key, refusal)
        if key in self.refused and not self._latest.is_of_first:
            self._latest.n_calls += 1
            return
        if len(self.refused) >= MOST_REFUSED:
            del self.refused[next(iter(self.refused))]
        if refusal.is_of_first and key in self._first:
            refusal.is_of_first = False
        self._first.add(key)
        self.refused[key] = refusal.with_traceback(None)
        refusal.__context__ = None  # which would keep frames, and tensors there
        text = f"{self.name} runs eagerly: {refusal}"
        if self.on_refusal == "raise":
            raise refusal
        if self.on_refusal == "warn":
            _frames.warn_once(f"pai_torchacc: {text}", key=text)


@dataclass
class Call:
    """A call that is to be recorded."""

    key: Any
    described: tuple[Described, Described]
    tensors: list[Tensor]
    of_modules: dict[Place, Tensor]
    learnt: dict[Place, Tensor] | None
    """Parameters of the modules, where it is a training step."""
    args: Any
    kwargs: Any


def _may_see_functions(modules: list[nn.Module]) -> bool:
    """Layers of attention go another way where somebody looks at functions."""
    return not any(
        isinstance(module, nn.MultiheadAttention | nn.TransformerEncoderLayer)
        for module in modules
    )


def _places(used: list[Place], of_modules: dict[Place, Tensor]) -> tuple[Any, ...]:
    """As the extension wants them; of a tied tensor all its places are looked at."""
    homes = (*HOMES, GRADIENTS_HOME)
    found = [(module, homes.index(home), name, -1) for module, home, name in used]
    for i, place in enumerate(used):
        found += [
            (module, homes.index(home), name, i)
            for (module, home, name), tensor in of_modules.items()
            if tensor is of_modules[place] and (module, home, name) != place
        ]
    return tuple(found)


def _learnt_in(of_modules: dict[Place, Tensor]) -> dict[Place, Tensor]:
    return {place: t for place, t in of_modules.items() if place[1] == HOMES[0]}


def _gradients_of(learnt: dict[Place, Tensor]) -> dict[Place, Tensor]:
    """Those that there are, each at the place of its parameter."""
    return {
        (module, GRADIENTS_HOME, name): parameter.grad
        for (module, _, name), parameter in learnt.items()
        if parameter.is_leaf and parameter.grad is not None
    }


def _learning(learnt: dict[Place, Tensor] | None) -> Any:
    """What a step must leave as it is."""
    flags = [parameter.requires_grad for parameter in (learnt or {}).values()]
    return flags, torch.is_grad_enabled()


def _as_learnt(learnt: dict[Place, Tensor]) -> Iterator[tuple[Any, ...]]:
    """(module, name, learns, has no gradient before, address) of each."""
    for (module, _, name), parameter in learnt.items():
        has_none = parameter.is_leaf and parameter.grad is None
        yield module, name, parameter.requires_grad, has_none, id(parameter)
