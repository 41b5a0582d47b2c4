"""What a graph was captured with, and whether it is still so.

A graph reads and writes addresses. A tensor that was replaced, or given other memory,
is another one to it, and numbers of Python's are those of the capture.
"""

from __future__ import annotations

import operator
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer, optimizer

from pai_torchacc.graph.memories import HOMES
from pai_torchacc.graph.training import why_not_here

_count_users: Any = getattr(torch._C, "_storage_Use_Count", None)

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
        self._entries = [
            (state, len(state), _numbers_in(state)) if type(state) is dict
            else (state, 0, [])
            for state in one.state.values()
        ]  # fmt: skip
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
        if not self._has_states():
            return Stale("an optimizer's state is another")
        for holder, name, tensor, address in self._addresses:
            if holder.get(name) is not tensor or tensor.data_ptr() != address:
                return Stale("an optimizer's tensors are others")
        if len(one.param_groups) != len(self._groups):
            return Stale("an optimizer's groups are others")
        for group, before, learnt in zip(
            one.param_groups, self._groups, self._learnt, strict=True
        ):
            now = group["params"]
            if len(now) != len(learnt) or not all(map(operator.is_, now, learnt)):
                return Stale("an optimizer's parameters are others")
            for name in before.keys() | group.keys():
                if not _is_same(group.get(name), before.get(name)):
                    return Stale(f"an optimizer's {name} is another", False, True)
        return None

    def _has_states(self) -> bool:
        """The same ones, with as many entries; counts would not go on in a replay."""
        state = self.optimizer.state
        if state is not self._state or len(state) != len(self._states):
            return False
        entries = self._entries
        return all(map(operator.is_, state.values(), (e[0] for e in entries))) and all(
            len(holder) == n and all(_is_same(holder.get(k), v) for k, v in numbers)
            for holder, n, numbers in entries
            if type(holder) is dict
        )

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
    again, so that nobody else may hold it from one call to the next. One that is there,
    and that the call adds to, has to be there again. Others are nobody's business.

    Parameters
    ----------
    learnt : list of Tensor
        Parameters.
    touched : set of int
        Which of their gradients such a call reads or writes while they are there.
    """

    def __init__(self, learnt: list[Tensor], touched: set[int]):
        self._learnt = [tensor for tensor in learnt if tensor.is_leaf]
        self._before: list[Tensor | None] = [tensor.grad for tensor in self._learnt]
        self._were_none = [grad is None for grad in self._before]
        self._touched = touched
        self._added_to: list[tuple[Tensor, weakref.ref[Tensor], int]] = []
        self._renewed: list[tuple[Tensor, Tensor]] = []
        self._dropped: list[Tensor] = []
        self._holders: list[tuple[int, int]] = []

    def captured(self) -> None:
        """The call has been captured: what it has left is what a replay leaves."""
        for i, (parameter, before) in enumerate(
            zip(self._learnt, self._before, strict=True)
        ):
            grad = parameter.grad
            if grad is None:
                if before is not None:
                    self._dropped.append(parameter)
            elif grad is not before:
                self._renewed.append((parameter, grad))
            elif i in self._touched:
                reference = weakref.ref(grad)
                self._added_to.append((parameter, reference, grad.data_ptr()))

    def renewed(self) -> list[Tensor]:
        """Gradients that the call makes."""
        return [grad for _, grad in self._renewed]

    def written(self) -> list[Tensor]:
        """All that a replay has written."""
        added_to = (parameter.grad for parameter, _, _ in self._added_to)
        return [*self.renewed(), *(grad for grad in added_to if grad is not None)]

    def settle(self) -> None:
        """There is no way back: all that holds gradients now may do so at a replay."""
        self._before = []
        self._holders = [self._holders_of(i) for i in range(len(self._renewed))]

    def _holders_of(self, i: int) -> tuple[int, int]:
        """How many hold a gradient that the call makes, beside us and its parameter.

        Torch's own reference from the parameter counts as one of Python's.
        """
        parameter, grad = self._renewed[i]
        is_put = parameter.grad is grad
        return sys.getrefcount(grad) - is_put, _n_storage_users(grad)

    def why_not(self) -> Stale | None:
        """What is otherwise than it was before the captured call."""
        for parameter, was_none in zip(self._learnt, self._were_none, strict=True):
            if (parameter.grad is None) is not was_none:
                return Stale("gradients are there or not", True)
        for parameter, reference, address in self._added_to:
            grad = parameter.grad
            if grad is None or reference() is not grad or grad.data_ptr() != address:
                return Stale("a gradient that is added to is another")
        for i, (n_python, n_storage) in enumerate(self._holders):
            now = self._holders_of(i)
            if now[0] > n_python or now[1] > n_storage:
                return Stale("a gradient of an earlier call is still held", True)
        return None

    def put(self) -> None:
        """Behind a replay: gradients are those that the call leaves."""
        for parameter, grad in self._renewed:
            if parameter.grad is not grad:
                parameter.grad = grad
        for parameter in self._dropped:
            parameter.grad = None

    def restore(self) -> None:
        """Have them be what they were, after a call that has executed nothing."""
        for parameter, before in zip(self._learnt, self._before, strict=False):
            parameter.grad = before


class Guards:
    """All of it, for one graph.

    Parameters
    ----------
    modules : list of Module
        Whose tensors are read.
    learnt : list of Tensor, optional
        Parameters, of a training step.
    touched : set of int
        Of the gradients of these, as :class:`Gradients` has it.
    optimizers : list of Optimizer
        That it steps.
    """

    def __init__(
        self,
        modules: list[nn.Module],
        learnt: list[Tensor] | None,
        touched: set[int],
        optimizers: list[Optimizer],
    ):
        self._is_step, self._learnt = learnt is not None, learnt or []
        self.tensors = [
            (vars(module), home, name, tensor, tensor.data_ptr(), tensor.requires_grad)
            for module in modules
            for home in HOMES
            for name, tensor in vars(module)[home].items()
            if tensor is not None
        ]
        self.gradients = Gradients(learnt or [], touched)
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
            or next(filter(None, (one.why_not() for one in self.optimizers)), None)
            or self.gradients.why_not()  # last, since what it finds may pass
        )

    def _why_not_around(self) -> Stale | None:
        if (why := why_not_here()) is not None:
            return Stale(why, True)
        if optimizer._global_optimizer_pre_hooks:
            return Stale("hooks listen to all optimizers", True)
        if optimizer._global_optimizer_post_hooks:
            return Stale("hooks listen to all optimizers", True)
        for tensor in self._learnt:
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                return Stale("a parameter has a hook", True)
        return None

    def restore(self) -> None:
        """Undo what a call has done in Python that has executed nothing."""
        self.gradients.restore()
        for one in self.optimizers:
            one.restore()


def _numbers_in(state: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return [(k, v) for k, v in state.items() if not isinstance(v, Tensor)]


def _is_same(one: Any, other: Any) -> bool:
    if type(one) in _PLAIN and type(one) is type(other):
        return bool(one == other)
    if type(one) is tuple and type(other) is tuple and len(one) == len(other):
        return all(map(_is_same, one, other))
    return one is other


def _n_storage_users(tensor: Tensor) -> int:
    """How many tensors share its memory, where this torch tells."""
    return _count_users(tensor.untyped_storage()._cdata) if _count_users else 0
