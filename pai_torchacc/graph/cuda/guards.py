"""What a graph was captured with, and whether it is still so.

A graph reads and writes addresses. A tensor that was replaced, or given other memory,
is another one to it, and numbers of Python's are those of the capture.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, optimizer

from pai_torchacc.graph.memories import HOMES
from pai_torchacc.graph.training import why_not_here

_PLAIN = (int, float, bool, str, type(None))


@dataclass(frozen=True)
class Stale:
    """Why a graph is not for a call that looks like its own."""

    why: str
    passes: bool = False
    """A later call may find it so again."""
    is_of_numbers: bool = False
    """Nothing but a number of Python's is another one."""


class OptimizerGuard:
    """An optimizer's numbers, and where its tensors lie."""

    def __init__(self, one: Optimizer):
        self.optimizer = one
        self._groups = [dict(group) for group in one.param_groups]
        self._learnt = [list(group["params"]) for group in one.param_groups]
        self._state = one.state
        self._states = {
            parameter: dict(state) if type(state) is dict else state
            for parameter, state in one.state.items()
        }
        self._addresses = [
            (holder, name, tensor, tensor.data_ptr())
            for holder in (*one.param_groups, *self._dictionaries())
            for name, tensor in holder.items()
            if isinstance(tensor, Tensor)
        ]

    def _dictionaries(self) -> list[dict[Any, Any]]:
        return [s for s in self.optimizer.state.values() if type(s) is dict]

    def why_not(self) -> Stale | None:
        """What is otherwise than it was."""
        one = self.optimizer
        if one._optimizer_step_pre_hooks or one._optimizer_step_post_hooks:
            return Stale("an optimizer's step has hooks")
        if one.state is not self._state or len(one.state) != len(self._states):
            return Stale("an optimizer's state is another")
        for holder, name, tensor, address in self._addresses:
            if holder.get(name) is not tensor or tensor.data_ptr() != address:
                return Stale("an optimizer's tensors are others")
        if len(one.param_groups) != len(self._groups):
            return Stale("an optimizer's groups are others")
        for group, before, learnt in zip(
            one.param_groups, self._groups, self._learnt, strict=True
        ):
            if list(map(id, group["params"])) != list(map(id, learnt)):
                return Stale("an optimizer's parameters are others")
            for name in before.keys() | group.keys():
                if not _is_same(group.get(name), before.get(name)):
                    return Stale(f"an optimizer's {name} is another", False, True)
        return self._why_not_by_numbers()

    def _why_not_by_numbers(self) -> Stale | None:
        """Counts in its states would not go on in a replay."""
        for parameter, before in self._states.items():
            state = self.optimizer.state.get(parameter)
            if type(before) is dict and (
                type(state) is not dict
                or state.keys() != before.keys()
                or not all(_is_same(state[k], v) for k, v in before.items())
            ):
                return Stale("an optimizer's state is another")
        return None

    def restore(self) -> None:
        """Have it hold what it held, after a call that has executed nothing."""
        one = self.optimizer
        for group, before in zip(one.param_groups, self._groups, strict=False):
            group.update(before)
        for parameter in list(one.state):
            if parameter not in self._states:
                del one.state[parameter]
        for parameter, before in self._states.items():
            if type(before) is dict:
                one.state[parameter].clear()
                one.state[parameter].update(before)


class Gradients:
    """``.grad`` of parameters, before a captured call and behind it.

    A gradient that the call makes lies in the graph's memory. Each replay writes it
    again, so that nobody else may hold it from one call to the next.
    """

    def __init__(self, learnt: list[Tensor]):
        self._learnt = [tensor for tensor in learnt if tensor.is_leaf]
        self._before = [tensor.grad for tensor in self._learnt]
        self._addresses = [_address_of(grad) for grad in self._before]
        self._after: list[Tensor | None] = []
        self._holders: list[Any] = []

    def captured(self) -> None:
        """The call has been captured: what it has left is what a replay leaves."""
        self._after = [tensor.grad for tensor in self._learnt]

    def count_holders(self) -> None:
        """All that holds them now may do so at a replay."""
        self._holders = [self._holders_of(i) for i in range(len(self._learnt))]

    def renewed(self) -> list[Tensor]:
        """Gradients that the call makes."""
        pairs = zip(self._after, self._before, strict=True)
        return [now for now, before in pairs if now is not None and now is not before]

    def added_to(self) -> list[Tensor]:
        """Gradients that were there, and that the call writes."""
        pairs = zip(self._after, self._before, strict=True)
        return [now for now, before in pairs if now is not None and now is before]

    def _makes(self, i: int) -> bool:
        return self._after[i] is not None and self._after[i] is not self._before[i]

    def _holders_of(self, i: int) -> Any:
        """How many hold a gradient that the call makes, beside us and its parameter.

        Torch's own reference from the parameter counts as one of Python's.
        """
        if not self._makes(i):
            return 0, 0
        is_put = self._learnt[i].grad is self._after[i]
        return (
            sys.getrefcount(self._after[i]) - is_put,
            _n_storage_users(self._after[i]),
        )

    def why_not(self) -> Stale | None:
        """What is otherwise than it was before the captured call."""
        for i, parameter in enumerate(self._learnt):
            before, now = self._before[i], parameter.grad
            if (now is None) != (before is None):
                return Stale("gradients are there or not", True)
            is_same = now is before and _address_of(now) == self._addresses[i]
            if self._after[i] is before and not is_same:
                return Stale("a gradient that is added to is another")
        del before, now
        for i, held in enumerate(self._holders):
            if any(n > m for n, m in zip(self._holders_of(i), held, strict=True)):
                return Stale("a gradient of an earlier call is still held", True)
        return None

    def put(self) -> None:
        """Behind a replay: gradients are those that the call leaves."""
        for parameter, after in zip(self._learnt, self._after, strict=True):
            if parameter.grad is not after:
                parameter.grad = after

    def restore(self) -> None:
        """Have them be what they were, after a call that has executed nothing."""
        for parameter, before in zip(self._learnt, self._before, strict=True):
            parameter.grad = before


class Guards:
    """All of it, for one graph.

    Parameters
    ----------
    modules : list of Module
        Whose tensors are read.
    learnt : list of Tensor, optional
        Parameters, of a training step.
    optimizers : list of Optimizer
        That it may step.
    """

    def __init__(
        self,
        modules: list[nn.Module],
        learnt: list[Tensor] | None,
        optimizers: list[Optimizer],
    ):
        self._is_step = learnt is not None
        self.tensors = [
            (vars(module), home, name, tensor, tensor.data_ptr(), tensor.requires_grad)
            for module in modules
            for home in HOMES
            for name, tensor in vars(module)[home].items()
            if tensor is not None
        ]
        self.gradients = Gradients(learnt or [])
        self.optimizers = [OptimizerGuard(one) for one in optimizers]

    def why_not(self) -> Stale | None:
        """What is otherwise than at the capture, or None."""
        for attributes, home, name, tensor, address, wants_grad in self.tensors:
            if attributes[home].get(name) is not tensor:
                return Stale("a parameter or buffer is another")
            if tensor.data_ptr() != address:
                return Stale("a parameter or buffer has other memory")
            if tensor.requires_grad is not wants_grad:
                return Stale("a parameter is learnt, or not any more")
        if not self._is_step:
            return None
        return (
            self._why_not_around()
            or self.gradients.why_not()
            or next(filter(None, (one.why_not() for one in self.optimizers)), None)
        )

    def _why_not_around(self) -> Stale | None:
        if (why := why_not_here()) is not None:
            return Stale(why, True)
        if optimizer._global_optimizer_pre_hooks:
            return Stale("hooks listen to all optimizers", True)
        if optimizer._global_optimizer_post_hooks:
            return Stale("hooks listen to all optimizers", True)
        for _, _, _, tensor, _, _ in self.tensors:
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                return Stale("a parameter has a hook", True)
        return None

    def restore(self) -> None:
        """Undo what a call has done in Python that has executed nothing."""
        self.gradients.restore()
        for one in self.optimizers:
            one.restore()


def _address_of(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _is_same(one: Any, other: Any) -> bool:
    if type(one) in _PLAIN and type(one) is type(other):
        return bool(one == other)
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(map(_is_same, one, other))
    return one is other


def _n_storage_users(tensor: Tensor | None) -> int:
    """How many tensors share its memory, where this torch tells."""
    count = getattr(torch._C, "_storage_Use_Count", None)
    if tensor is None or count is None:
        return 0
    return int(count(tensor.untyped_storage()._cdata))
