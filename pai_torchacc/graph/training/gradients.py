"""The gradients of parameters while a training step is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from pai_torchacc.graph.ir import GRADIENTS, Node, Value
from pai_torchacc.graph.memories import Place
from pai_torchacc.graph.refusals import CannotPlan

if TYPE_CHECKING:
    from pai_torchacc.graph.recording import Recorder

_AS_BEFORE = (0, None)


class Gradients:
    """What ``.grad`` holds, and what a replay would have it hold by then.

    Parameters
    ----------
    recorder : Recorder
        Of the step's operators.
    parameters : dict
        Parameters of the modules, by their places.
    """

    def __init__(self, recorder: Recorder, parameters: dict[Place, Tensor]):
        self._recorder = recorder
        self._parameters = parameters
        self._known: dict[Place, tuple[int, Value] | None] = {}
        self._before = {
            place: tensor.grad for place, tensor in parameters.items() if tensor.is_leaf
        }

    def note(self, where: str) -> None:
        """Add a node that has gradients be as they are now, if they would not be."""
        memories = self._recorder.memories
        args: tuple[list[Any], list[Any]] = [], []
        for place, before in self._before.items():
            grad = self._parameters[place].grad
            if grad is before and place not in self._known:
                continue  # what it holds may be written, in place
            if grad is not None and grad is before:
                raise CannotPlan("a gradient was taken away and is back", where)
            value = None if grad is None else memories.value_of(grad, where)
            now = None if value is None else (id(grad), value.root)
            known = self._known.get(place, _AS_BEFORE)
            self._known[place] = now
            if known == now or _is_written(known, now):
                continue
            if value is not None and grad is not None:
                _check(value, where)
                memories.show(value, grad)
            args[0].append(memories.value_of(self._parameters[place], where))
            args[1].append(value)
        if args[0]:
            self._recorder.graph.nodes.append(Node(GRADIENTS, args, {}, [], where))

    def are_overwritten(self) -> None:
        """A node may have written to all of them."""
        for place, known in self._known.items():
            grad = self._parameters[place].grad
            if known is not None and grad is not None and id(grad) == known[0]:
                value = self._recorder.memories.value_of(grad)
                self._known[place] = known[0], value.root


def _is_written(known: Any, now: Any) -> bool:
    """The same tensor, written in place, as a replay will do it."""
    if known is None or now is None or known[0] != now[0]:
        return False
    value = now[1]
    while value is not None and value is not known[1]:
        value = value.over
    return value is not None


def _check(value: Value, where: str) -> None:
    if value.root.made_by is None or value.root.over is not None:
        raise CannotPlan("a gradient is a tensor that no operator has made", where)
