"""A call is looked at while it is made, to see whether a graph may take its place.

A capture that fails has run a part of the program in Python, and executed nothing; the
call has to be made again. What can be seen beforehand is therefore seen beforehand.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim import Optimizer, optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph.memories import check_alike, key_of
from pai_torchacc.graph.recording.operators import is_plain_lookup, statistics_in
from pai_torchacc.graph.refusals import CannotPlan, where
from pai_torchacc.graph.signature import is_dense
from pai_torchacc.graph.state import State
from pai_torchacc.graph.training import foreign, why_not_here
from pai_torchacc.graph.training.backwards import Backwards
from pai_torchacc.graph.training.program import Program

_aten = torch.ops.aten

_WAITS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Operators with these tags wait for the device."""

_SET_FROM_NUMBERS = {_aten.lift_fresh.default}
"""What torch.tensor() ends with, which copies from the host."""


_MOST_OF_TOKENS = 2
"""Elements: a seed, an offset."""


class Watcher(TorchDispatchMode):
    """The operators of one call, which is made as ever.

    Parameters
    ----------
    device : torch.device
        Of all tensors.
    arguments : list of Tensor
        Those of the call.
    modules : list of Module
        Whose tensors and attributes have to stay what they are.
    learnt : list of Tensor, optional
        Leaves among parameters, where a gradient of one could be asked for.
    objects : list
        Of the program's, which must not change.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import it; see ``graph/recording/__init__.py``."""
        return False

    def __init__(
        self,
        device: torch.device,
        arguments: list[Tensor],
        modules: list[nn.Module],
        learnt: list[Tensor] | None,
        objects: list[Any],
    ):
        super().__init__()
        self.refusal: CannotPlan | None = None
        self.outside: dict[int, Tensor] = {}
        """Tensors that no operator of the call has made, by their storages."""
        self.generators: list[torch.Generator] = []
        self.optimizers: list[Optimizer] = []
        """That have made a step."""
        self.written: set[int] = set()
        """Storages that are written."""
        self._device, self._arguments = device, arguments
        self._learnt = learnt
        self._made: dict[int, StorageWeakRef] = {}
        self._tokens: dict[int, StorageWeakRef] = {}
        self.touched: set[int] = set()
        """Parameters, by number, of which gradients that were there are read."""
        self._gradients = {
            key_of(tensor.grad): i
            for i, tensor in enumerate(learnt or ())
            if tensor.grad is not None
        }
        self._backwards = Backwards()
        self._thread = threading.get_ident()
        self._state = State(modules, is_step=learnt is not None)
        self._addresses = _addresses_in(modules)
        self._modules = modules
        self._program = Program(objects)
        changing = (LRScheduler, GradScaler)
        self._schedules = [one for one in objects if isinstance(one, changing)]
        self._schedules_before = list(map(_attributes_of, self._schedules))
        if learnt is not None:
            self._check_surroundings(learnt)

    def _check_surroundings(self, learnt: list[Tensor]) -> None:
        hooks = optimizer._global_optimizer_pre_hooks
        if hooks or optimizer._global_optimizer_post_hooks:
            raise CannotPlan("hooks listen to all optimizers")
        if (why := why_not_here()) is not None:
            raise CannotPlan(why)
        for tensor in learnt:
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                raise CannotPlan("a parameter has a hook")

    def __enter__(self) -> Any:
        self._hook = optimizer.register_optimizer_step_pre_hook(self._before_step)
        sys.setprofile(self._look)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        sys.setprofile(None)
        self._hook.remove()

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except CannotPlan as refusal:
            self.refusal = self.refusal or refusal.with_traceback(None)

    def _look(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call" and self.refusal is None:
            with self._refusing():
                self._backwards.look(frame)

    def _before_step(self, called: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread or self.refusal is not None:
            return
        with self._refusing():
            foreign.step_of(called, args, kwargs)
            if not any(called is one for one in self.optimizers):
                self.optimizers.append(called)
                self._program.meet(called)
            check_optimizer(called, self._device)

    # --- operators

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.refusal is not None or getattr(func, "namespace", "") == "profiler":
            return func(*args, **kwargs)
        with self._refusing():
            self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        with self._refusing():
            self._note(func, args, kwargs, result)
        return result

    def _before(self, func: Any, args: Any, kwargs: Any) -> None:
        place = where()
        if func in _SET_FROM_NUMBERS:
            raise CannotPlan("a tensor is made of Python's numbers", place)
        if _WAITS & set(getattr(func, "tags", ())) and not is_plain_lookup(func, args):
            name = func._schema.name.removeprefix("aten::")
            if name == "_local_scalar_dense":
                raise CannotPlan("a tensor's number is read in Python", place)
            raise CannotPlan(f"the result of {name} depends on the data", place)
        if getattr(func, "namespace", "") in ("_c10d_functional", "c10d"):
            raise CannotPlan("ranks talk to each other", place)
        for given in tree_flatten((args, kwargs))[0]:
            if isinstance(given, torch.Generator) and not self._knows(given):
                self.generators.append(given)
            elif isinstance(given, Tensor):
                self._read(given, place)

    def _knows(self, generator: torch.Generator) -> bool:
        return any(generator is one for one in self.generators)

    def _read(self, tensor: Tensor, place: str) -> None:
        if self._is_token(tensor):
            return
        self._check(tensor, place)
        key = key_of(tensor)
        made = self._made.get(key)
        if made is not None and not made.expired():
            return
        if key in self._gradients:
            self.touched.add(self._gradients[key])
        self.outside.setdefault(key, tensor)

    def _check(self, tensor: Tensor, place: str) -> None:
        if not is_dense(tensor):
            kind = type(tensor).__name__
            raise CannotPlan(f"tensors like this {kind} take their own ways", place)
        if tensor.device != self._device:
            text = f"a tensor lies on {tensor.device}, and the call's on {self._device}"
            raise CannotPlan(text, place)

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        place = where()
        self.written |= set(map(key_of, statistics_in(func, args)))
        for i, argument in enumerate(func._schema.arguments):
            if argument.is_write:
                given = args[i] if i < len(args) else kwargs.get(argument.name)
                self.written |= set(map(key_of, _tensors_in(given)))
        results = list(_tensors_in(result))
        self._take_tokens(results)
        for tensor in results:
            if self._is_token(tensor):
                continue
            self._check(tensor, place)
            key = key_of(tensor)
            made = self._made.get(key)
            if key in self.outside and (made is None or made.expired()):
                continue
            self._made[key] = StorageWeakRef(tensor.untyped_storage())

    def _take_tokens(self, results: list[Tensor]) -> None:
        """Attention gives its gradient where its random numbers begin.

        Beside what it computes, and on the host; in a capture that is on the device.
        """
        if any(
            is_dense(tensor) and tensor.device == self._device for tensor in results
        ):
            for tensor in results:
                is_number = is_dense(tensor) and tensor.numel() <= _MOST_OF_TOKENS
                if is_number and tensor.device.type == "cpu" != self._device.type:
                    storage = tensor.untyped_storage()
                    self._tokens[key_of(tensor)] = StorageWeakRef(storage)

    def _is_token(self, tensor: Tensor) -> bool:
        if not self._tokens or not is_dense(tensor):
            return False
        token = self._tokens.get(key_of(tensor))
        return token is not None and not token.expired()

    # --- once the call has returned

    def finish(self, results: list[Tensor]) -> None:
        """What has been seen, if it forbids a graph.

        Raises
        ------
        CannotPlan
            With the reason.
        """
        if self.refusal is not None:
            raise self.refusal
        self._check_changes()
        self._check_written()
        self._check_results(results)
        self._check_kept(results)
        self._check_touched()

    def wants_gradient(self, tensor: Tensor) -> bool:
        """Its graph has not been gone through by ``backward()``."""
        return tensor.requires_grad and not self._backwards.have_reached(tensor)

    def _check_changes(self) -> None:
        for one, before in zip(self._schedules, self._schedules_before, strict=True):
            if _attributes_of(one) == before:
                continue
            if isinstance(one, GradScaler):
                text = "a GradScaler steps, which asks the device: train in bfloat16"
            else:
                text = "a schedule steps: have it do so outside, and lr be a tensor"
            raise CannotPlan(text)
        if (changed := self._state.change()) is not None:
            raise CannotPlan(f"forward changes {changed}")
        if _addresses_in(self._modules) != self._addresses:
            raise CannotPlan("a parameter is given other memory")
        self._program.check()

    def _check_written(self) -> None:
        of_arguments = set(map(key_of, self._arguments))
        if self.written & of_arguments:
            raise CannotPlan("an argument is written")

    def _check_results(self, results: list[Tensor]) -> None:
        arguments = {key_of(tensor): tensor for tensor in self._arguments}
        for tensor in results:
            check_alike(tensor)
            self._check(tensor, "")
            whole = arguments.get(key_of(tensor), self.outside.get(key_of(tensor)))
            if whole is not None:
                if whole is not tensor:
                    raise CannotPlan("a view of an argument or parameter is returned")
            elif self.wants_gradient(tensor):
                refusal = CannotPlan("a result wants a gradient")
                refusal.is_silent = not self._backwards.have_begun()
                raise refusal
            elif type(tensor) is not Tensor:
                raise CannotPlan("a parameter that the call makes is returned")

    def _check_kept(self, results: list[Tensor]) -> None:
        """What the call has made is gone, but for results, gradients and states."""
        allowed = set(map(key_of, results))
        for tensor in self._learnt or ():
            if tensor.grad is not None:
                allowed.add(key_of(tensor.grad))
        for one in self.optimizers:
            states = (state for state in one.state.values() if type(state) is dict)
            allowed |= {key_of(t) for state in states for t in _tensors_in(state)}
        if self._has_kept(allowed):
            gc.collect()
            if self._has_kept(allowed):
                raise CannotPlan("a tensor that is no result is kept by the program")

    def _has_kept(self, allowed: set[int]) -> bool:
        return any(
            key not in allowed and not made.expired()
            for key, made in self._made.items()
        )

    def _check_touched(self) -> None:
        """A gradient that is read is there afterwards, so that it can be guarded."""
        keys = {i: key for key, i in self._gradients.items()}
        for i in self.touched if self._learnt else ():
            grad = self._learnt[i].grad
            if grad is None or key_of(grad) != keys[i]:
                raise CannotPlan("the step reads a gradient, and makes another one")


def check_optimizer(one: Optimizer, device: torch.device) -> None:
    """Raise :class:`CannotPlan` where a graph could not do what its step does."""
    name = type(one).__name__
    if one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks:
        raise CannotPlan(f"{name}'s step has hooks")
    for group in one.param_groups:
        if group.get("capturable", True) is False:
            text = f"{name} counts its steps on the host: give it capturable=True"
            raise CannotPlan(text)
        for key, value in group.items():
            if isinstance(value, Tensor) and value.device != device:
                raise CannotPlan(f"{name}'s {key} is a tensor, but not on {device}")
    for state in one.state.values():
        for tensor in _tensors_in(state):
            if tensor.device != device:
                raise CannotPlan(f"{name} has a state on {tensor.device}")


def _tensors_in(object: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_flatten(object)[0] if isinstance(leaf, Tensor))


def _attributes_of(one: Any) -> list[Any]:
    """By identity; of numbers, which may be made anew, by value."""
    return [
        (name, value if type(value) in (int, float) else id(value))
        for name, value in vars(one).items()
    ]


def _addresses_in(modules: list[nn.Module]) -> list[int]:
    return [
        tensor.data_ptr()
        for module in modules
        for home in ("_parameters", "_buffers")
        for tensor in vars(module)[home].values()
        if tensor is not None and is_dense(tensor)
    ]
