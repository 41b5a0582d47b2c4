"""What a training step does beside calling operators, while it is recorded.

Gradients that ``backward()`` leaves with parameters are no results of any operator, and
what an optimizer, a schedule or a scaler does with them is its own: such calls are
nodes that are replayed as they are, in Python, with gradients in place.
"""

from __future__ import annotations

import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import optimizer

from pai_torchacc import _switch
from pai_torchacc.graph.ir import Node
from pai_torchacc.graph.memories import Place
from pai_torchacc.graph.refusals import CannotPlan, where
from pai_torchacc.graph.training import backwards, foreign
from pai_torchacc.graph.training.backwards import Backwards
from pai_torchacc.graph.training.gradients import Gradients
from pai_torchacc.graph.training.program import Program

if TYPE_CHECKING:
    from pai_torchacc.graph.recording import Recorder

_NAMES = foreign.NAMES | {backwards.NAME, "zero_grad"}


class Training:
    """Watches one training step for a recorder.

    Parameters
    ----------
    recorder : Recorder
        Of the step's operators.
    parameters : dict
        Parameters of the modules, by their places.
    objects : list
        Others that the step reaches by name or by argument.
    """

    def __init__(
        self, recorder: Recorder, parameters: dict[Place, Tensor], objects: list[Any]
    ):
        if (why := why_not_here()) is not None:
            raise CannotPlan(why)
        for tensor in parameters.values():
            if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
                raise CannotPlan("a parameter has a hook")
        self.is_paused = False
        """Operators are called by what is one node."""
        self._backwards = Backwards()
        self._recorder = recorder
        self._gradients = Gradients(recorder, parameters)
        self._program = Program(objects)
        self._thread = threading.get_ident()
        self._caller: Any = None
        self._depth = 0
        self._node: Node | None = None
        self._hooks: list[Any] = []

    def __enter__(self) -> None:
        self._hooks = [
            optimizer.register_optimizer_step_pre_hook(self._before_step),
            optimizer.register_optimizer_step_post_hook(self._after_step),
        ]

    def __exit__(self, *error: Any) -> None:
        for hook in self._hooks:
            hook.remove()

    def is_of_interest(self, frame: FrameType, name: str) -> bool:
        """A function may be one that this is about, by its name."""
        return name in _NAMES or frame is self._caller

    def look(self, frame: FrameType, event: str, returned: Any) -> None:
        """Python calls a function, or returns from it."""
        if event == "return" and self._caller is frame:
            with self._recorder.refusing():
                self._end(self._node or self._clipping(frame, returned), returned)
        if event == "return" and frame.f_code.co_name == "zero_grad":
            with self._recorder.refusing():
                if self._recorder.refusal is None and not self.is_paused:
                    self._gradients.note(where(frame))
        if event != "call" or self.is_paused:
            return
        with self._recorder.refusing():
            if self._backwards.look(frame):
                self._gradients.note(where())  # old ones are gone while new ones come
            elif foreign.is_begun(frame):
                self._begin(frame, foreign.method_of(frame))

    def finish(self) -> None:
        """The last word on gradients, and on what the program holds."""
        if self.is_paused:
            raise CannotPlan("an error is raised and caught")
        self._gradients.note("")
        self._program.check()

    def has_begun(self) -> bool:
        """backward() was called."""
        return self._backwards.have_begun()

    def has_learnt(self, tensor: Tensor) -> bool:
        """Autograd's graph behind a tensor has been gone through, and is gone."""
        return self._backwards.have_reached(tensor)

    # --- calls that are nodes

    def _before_step(self, called: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        if self.is_paused:
            self._depth += self._caller is called
            return
        with self._recorder.refusing():
            self._program.meet(called)
            self._begin(called, foreign.step_of(called, args, kwargs))

    def _after_step(self, called: Any, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread or self._caller is not called:
            return
        if self._depth > 0:
            self._depth -= 1
            return
        with self._recorder.refusing():
            if self._node is not None:
                self._end(self._node, None)

    def _begin(self, caller: Any, node: Node | None) -> None:
        """From here on operators are those of one call."""
        if self._recorder.refusal is not None:
            return
        self._program.check_groups()
        self._gradients.note(where())
        if node is not None:
            node.where = where()
        self._caller, self._node, self.is_paused = caller, node, True

    def _clipping(self, frame: FrameType, returned: Any) -> Node:
        node = foreign.clipping_of(frame, self._recorder.memories)
        node.where = where(frame)
        return node

    def _end(self, node: Node, returned: Any) -> None:
        """The call is over, and may have changed all that others can see."""
        if isinstance(self._caller, FrameType) and not foreign.has_returned(
            self._caller
        ):
            raise CannotPlan(f"{node.name} raises an error", node.where)
        self.is_paused, self._caller = False, None
        recorder = self._recorder
        if recorder.refusal is not None:
            return
        if isinstance(returned, Tensor):
            node.outputs.append(recorder.memories.add(returned, node))
        recorder.graph.nodes.append(node)
        recorder.memories.overwrite_all(node)
        self._gradients.are_overwritten()
        self._program.groups_may_change()


def why_not_here() -> str | None:
    """Why steps cannot be planned now, whatever they are."""
    if torch.is_anomaly_enabled():
        return "autograd looks for anomalies"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "the program sees what autograd saves"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return "ranks talk to each other: torch.distributed is in use"
    if _switch.is_active("adaptive_lr"):
        return "adaptive_lr watches the losses"
    return None
