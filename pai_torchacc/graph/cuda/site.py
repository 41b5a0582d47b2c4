"""The graphs of one module or function, and how its calls come to them.

The first call of a kind is made as ever. The next two are looked at, and with one more
made on the stream that captures; by then libraries have their workspaces, optimizers
their states, and the allocator what it needs. The fifth is captured and replayed.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pai_torchacc.graph.cuda import capturing
from pai_torchacc.graph.cuda.captured import Captured, overlaps
from pai_torchacc.graph.cuda.capturing import Busy, Pool
from pai_torchacc.graph.cuda.guards import Guards, OptimizerGuard, Stale
from pai_torchacc.graph.cuda.watching import Watcher, check_optimizer
from pai_torchacc.graph.memories import check_alike, key_of
from pai_torchacc.graph.refusals import CannotPlan, where_in
from pai_torchacc.graph.signature import describe, is_dense, results_of
from pai_torchacc.graph.signature import key_of as key_of_call

MOST_GRAPHS = 4
"""Of one module or function; other kinds of calls run eagerly."""

MOST_AGAIN = 4
"""Captures of one kind of calls, because a number or an address is another one."""

_MOST_KINDS = 64
"""That are remembered while they are not captured."""

_FIRST, _LOOKED_AT, _LAST = 1, 3, 4
"""Calls made as ever, until they were looked at, before one is captured."""


@dataclass
class _Seen:
    """A kind of calls that is not captured yet."""

    n_calls: int = 0
    outside: dict[int, Tensor] = field(default_factory=dict)
    generators: list[torch.Generator] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    written: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    n_captures: int = 0


class Graphs:
    """What makes calls on a CUDA device.

    Parameters
    ----------
    eager : callable
        What calls do without a graph.
    holds : callable
        Whether modules and names are as they were.
    modules : callable
        Those under guard.
    objects : callable
        What a call reaches by name and by argument, of its args and kwargs.
    refuse : callable
        Is told of a kind of calls, and why it cannot be captured.
    generation : callable
        Another number whenever our kernels may be others.
    """

    def __init__(
        self,
        eager: Callable[..., Any],
        holds: Callable[[], bool],
        modules: Callable[[], list[nn.Module]],
        objects: Callable[[Any, Any], list[Any]],
        refuse: Callable[[Any, CannotPlan], None],
        generation: Callable[[], int],
    ):
        self._eager, self._holds, self._modules = eager, holds, modules
        self._objects, self._refuse = objects, refuse
        self._generation_now, self._generation = generation, -1
        self._captured: list[Captured] = []
        self._seen: dict[Any, _Seen] = {}
        self._pool: Pool | None = None
        self._busy = threading.Lock()
        self.n_replays = 0
        self.n_passed: dict[str, int] = {}
        """Calls made eagerly though there is a graph, by the reason."""

    def __len__(self) -> int:
        return len(self._captured)

    def are_asked(self) -> bool:
        """Calls come here, since their tensors lie on a CUDA device."""
        return bool(self._seen or self._captured)

    def clear(self) -> None:
        """Free graphs, and forget what has been seen."""
        self._captured, self._seen, self._pool = [], {}, None

    def count_anew(self) -> None:
        """Begin counting calls."""
        self.n_replays, self.n_passed = 0, {}

    # --- a call

    def find(
        self, args: Any, kwargs: Any, owner_of: Callable[[Any], Any]
    ) -> Callable[[], Any] | None:
        """What makes a call by a graph, or None."""
        if not self._captured or not self._holds():
            return None
        if self._generation != self._generation_now():
            return None
        tensors: list[Tensor] = []
        try:
            owner = owner_of(args)
            described = describe(args, tensors, owner), describe(kwargs, tensors)
        except CannotPlan:
            return None
        if not all(map(is_dense, tensors)):
            return None
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return None
        key = self._key_of(key_of_call(described, tensors, {}))
        for captured in self._captured:
            if captured.key[0] != key or self._why_not(captured, tensors) is not None:
                continue
            if self._pool is None or self._why_not_now(self._pool.device) is not None:
                return None
            return lambda: self._replay(captured, tensors, args, kwargs)
        return None

    def device_of(
        self, tensors: list[Tensor], of_modules: dict[Any, Tensor]
    ) -> torch.device | None:
        """The CUDA device of a call's tensors; None: they lie on the CPU.

        Raises
        ------
        CannotPlan
            They lie on several devices.
        """
        devices = {tensor.device for tensor in (*tensors, *of_modules.values())}
        kind = capturing.layer.device_type
        if not any(device.type == kind for device in devices):
            return None
        if len(devices) > 1:
            names = " and ".join(sorted(map(str, devices)))
            raise CannotPlan(f"its tensors lie on {names}: move them before the call")
        return next(iter(devices))

    def prepare(self, call: Any, device: torch.device) -> Callable[[], Any] | None:
        """What makes a call that has no graph; None where it should just be made."""
        if (why := self._why_not_now(device)) is not None:
            self._count(why)
            return None
        if self._generation != (generation := self._generation_now()):
            self.clear()
            self._generation = generation
        key = self._key_of(key_of_call(call.described, call.tensors, {})), call.key
        seen = self._seen_of(key)
        if not self._is_stale(key, seen, call):
            return None
        if seen.n_calls < _LAST and not self._check(call):
            return None
        if seen.n_calls >= _LAST and not self._has_room():
            text = f"of more than {MOST_GRAPHS} kinds on a CUDA device"
            self._refuse("kinds on CUDA", CannotPlan(text))
            return None
        seen.n_calls += 1
        if seen.n_calls <= _FIRST:
            return None
        try:
            self._pool_on(device)
        except RuntimeError as error:
            self._refuse(call.key, _refusal_of(error))
            return None
        if seen.n_calls <= _LOOKED_AT:
            return lambda: self._look_at(call, seen, device)
        if seen.n_calls <= _LAST:
            return lambda: self._make_aside(call, device)
        return lambda: self._capture(call, key, seen, device)

    def _key_of(self, call: Any) -> Any:
        """A kind of calls, and what torch is set to."""
        return (
            call,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            capturing.layer.circumstances(),
        )

    def _why_not_now(self, device: torch.device) -> str | None:
        layer = capturing.layer
        if (why := layer.why_not(device)) is not None:
            return str(why)
        if layer.is_capturing():
            return "the program captures a graph itself"
        if self._pool is not None and not layer.is_of_this_process(self._pool):
            return "a forked process has no part in graphs of its parent"
        return None

    def _why_not(self, captured: Captured, tensors: list[Tensor]) -> Stale | None:
        if not captured.inputs.are(tensors):
            return Stale("a parameter among the arguments is another")
        return captured.guards.why_not()

    def _seen_of(self, key: Any) -> _Seen:
        if key not in self._seen:
            if len(self._seen) >= _MOST_KINDS:
                self._seen.pop(next(iter(self._seen)))
                text = f"of more than {_MOST_KINDS} kinds, most of them seldom"
                self._refuse("kinds on CUDA", CannotPlan(text))
            self._seen[key] = _Seen()
        return self._seen[key]

    def _has_room(self) -> bool:
        """For one more graph, when those are gone that no call will find."""
        if len(self._captured) >= MOST_GRAPHS:
            whys = [(one, one.guards.why_not()) for one in self._captured]
            self._captured = [one for one, why in whys if why is None or why.passes]
        return len(self._captured) < MOST_GRAPHS

    def _is_stale(self, key: Any, seen: _Seen, call: Any) -> bool:
        """A call has no graph, or one that was captured with something else.

        False: it is made eagerly.
        """
        one = next((one for one in self._captured if one.key == key), None)
        why = one and self._why_not(one, call.tensors)
        if one is None or why is None:
            return True
        if why.passes:
            self._count(why.why)
            return False
        self._captured.remove(one)
        if seen.n_captures >= MOST_AGAIN:
            self._refuse(call.key, CannotPlan(_advice(why)))
            return False
        if not why.is_of_numbers:
            seen.n_calls = _FIRST
        return True

    def _count(self, why: str) -> None:
        self.n_passed[why] = self.n_passed.get(why, 0) + 1

    def _check(self, call: Any) -> bool:
        """Tensors are such that they can be put at other addresses."""
        try:
            for tensor in (*call.tensors, *call.of_modules.values()):
                check_alike(tensor)
            keys = list(map(key_of, call.tensors))
            if len(set(keys)) < len(keys):
                raise CannotPlan("two arguments share memory")
            of_modules = {key_of(t): t for t in call.of_modules.values()}
            for tensor in call.tensors:
                if of_modules.get(key_of(tensor), tensor) is not tensor:
                    raise CannotPlan("an argument shares memory with a parameter")
                if overlaps(tensor):
                    raise CannotPlan("elements of an argument share memory")
        except CannotPlan as refusal:
            self._refuse(call.key, refusal)
            return False
        return True

    # --- ways to make it

    def _replay(
        self, captured: Captured, tensors: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        if not self._busy.acquire(blocking=False):
            self._count("another thread ran the graph")
            return self._eager(*args, **kwargs)
        try:
            returned = captured.replay(tensors)
        finally:
            self._busy.release()
        self.n_replays += 1
        return returned

    def _pool_on(self, device: torch.device) -> Pool:
        if self._pool is None or self._pool.device != device:
            self._captured = []
            self._pool = capturing.layer.make_pool(device)
        return self._pool

    def _make_aside(self, call: Any, device: torch.device) -> Any:
        with capturing.layer.aside(self._pool_on(device)):
            returned = self._eager(*call.args, **call.kwargs)
        self._hand_over(returned)
        return returned

    def _hand_over(self, returned: Any) -> None:
        try:
            results, _ = results_of(returned, is_step=False)
        except CannotPlan:
            return
        capturing.layer.hand_over(filter(is_dense, results))

    def _look_at(self, call: Any, seen: _Seen, device: torch.device) -> Any:
        """Make a call, and see whether its like can be captured."""
        learnt = _leaves(call)
        objects = self._objects(call.args, call.kwargs)
        pool = self._pool_on(device)
        try:
            watcher = Watcher(device, call.tensors, self._modules(), learnt, objects)
            states = [OptimizerGuard(one) for one in seen.optimizers]
        except CannotPlan as refusal:
            self._refuse(call.key, refusal)
            return self._eager(*call.args, **call.kwargs)
        with capturing.layer.aside(pool), watcher:
            returned = self._eager(*call.args, **call.kwargs)
        self._hand_over(returned)
        try:
            self._conclude(call, seen, watcher, states, returned, device)
        except CannotPlan as refusal:
            seen.outside, seen.optimizers = {}, []
            self._refuse(call.key, refusal)
        return returned

    def _conclude(
        self,
        call: Any,
        seen: _Seen,
        watcher: Watcher,
        states: list[OptimizerGuard],
        returned: Any,
        device: torch.device,
    ) -> None:
        if watcher.refusal is not None:
            raise watcher.refusal
        results, _ = results_of(returned, call.learnt is not None)
        watcher.finish(results)
        if not self._holds():
            raise CannotPlan("a name or a container changes")
        for one in watcher.optimizers:
            check_optimizer(one, device)
        is_last = seen.n_calls == _LOOKED_AT
        outside = self._others(call, watcher)
        if is_last:
            for state in states:
                if (why := state.why_not()) is not None:
                    raise CannotPlan(f"each step changes it: {why.why}")
            if outside.keys() != seen.outside.keys():
                raise CannotPlan("it reads tensors that are others from call to call")
        seen.outside, seen.generators = outside, watcher.generators
        seen.optimizers, seen.written = watcher.optimizers, watcher.written
        seen.touched = watcher.touched

    def _others(self, call: Any, watcher: Watcher) -> dict[int, Tensor]:
        """Tensors that it reads beside arguments, modules' tensors and gradients."""
        known = set(map(key_of, (*call.tensors, *call.of_modules.values())))
        known |= {key_of(t.grad) for t in _leaves(call) or () if t.grad is not None}
        found = {
            key: tensor for key, tensor in watcher.outside.items() if key not in known
        }
        for tensor in found.values():
            if call.learnt is not None and tensor.requires_grad:
                raise CannotPlan("a parameter that no known module has is learnt")
        return found

    def _capture(self, call: Any, key: Any, seen: _Seen, device: torch.device) -> Any:
        """Capture a call, and make it by the graph; eagerly where that fails."""
        seen.n_captures += 1
        leaves = _leaves(call)
        guards = Guards(self._modules(), leaves, seen.touched, seen.optimizers)
        held = list(seen.outside.values())
        living = (*held, *(entry[3] for entry in guards.tensors))
        written = [t for t in _once(living) if key_of(t) in seen.written]
        captured = Captured(
            key,
            self._pool_on(device),
            guards,
            held,
            [t for t in written if not t.is_inference()],
        )
        is_step = call.learnt is not None
        try:
            captured.capture(self._eager, call, seen.generators, is_step)
            for state in guards.optimizers:
                if (why := state.why_not()) is not None:
                    raise CannotPlan(f"the step changes it: {why.why}")
            guards.gradients.settle()
        except Busy as busy:
            seen.n_calls -= 1
            seen.n_captures -= 1
            self._count(str(busy))
            return self._eager(*call.args, **call.kwargs)
        except Exception as error:
            guards.restore()
            self._refuse(call.key, _refusal_of(error))
            return self._eager(*call.args, **call.kwargs)
        except BaseException:
            guards.restore()
            raise
        self._captured.append(captured)
        return self._replay(captured, call.tensors, call.args, call.kwargs)


def _leaves(call: Any) -> list[Tensor] | None:
    """Parameters of a training step, each once."""
    if call.learnt is None:
        return None
    return [tensor for tensor in _once(call.learnt.values()) if tensor.is_leaf]


def _once(tensors: Any) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def _advice(why: Stale) -> str:
    text = f"{why.why} too often for graphs"
    if why.is_of_numbers:
        text += ": have it be a tensor on the device, as with lr=torch.tensor(...)"
    return text


def _refusal_of(error: Exception) -> CannotPlan:
    if isinstance(error, CannotPlan):
        return error
    said = traceback.format_exception_only(_first(error))[-1].strip()
    place: TracebackType | None = _first(error).__traceback__
    return CannotPlan(f"it cannot be captured: {said}", where_in(place))


def _first(error: BaseException) -> BaseException:
    """What went wrong in the call; the end of a capture raises once more."""
    while error.__context__ is not None:
        error = error.__context__
    return error
