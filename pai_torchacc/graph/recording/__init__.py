"""Recording one call: torch's dispatcher shows each operator while it runs.

The call is made as ever, by torch, and returns what it returns. Of what it makes
nothing is kept alive, see ``graph/memories.py``.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph.ir import Function, Graph, Node, Value
from pai_torchacc.graph.memories import Memories, Place
from pai_torchacc.graph.recording.operators import Operators, is_tensor
from pai_torchacc.graph.refusals import CannotPlan, where
from pai_torchacc.graph.training import Training

_aten = torch.ops.aten

_READS = frozenset({"numpy", "tolist", "apply_", "map_", "map2_"})

_OF_GENERATORS = frozenset(
    name for name in vars(torch.Generator) if not name.startswith("_")
)

_TOLD = _READS | _OF_GENERATORS
"""Methods by whose names it is decided whether to look at a call."""

_HIGHER_ORDER = f"{Path(torch.__file__).parent}{os.sep}_higher_order_ops{os.sep}"

_TAKE_FUNCTIONS = {"cond", "while_loop", "map", "scan", "associative_scan"}

_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})

_WHOLE = _RECURRENT | {"max_pool1d"}
"""Functions of torch's that are recorded as they are called, not by their parts."""

_FROM_PYTHON = frozenset({"tensor", "as_tensor", "asarray"})
"""What makes tensors of Python's objects, tensors among them."""

_PAST_DISPATCH = frozenset({"tensor_split", "__set__"})
"""Functions that read or change tensors where the dispatcher does not see it."""


class Leave(CannotPlan):
    """The call cannot go on while it is recorded."""


class _Functions(TorchFunctionMode):
    """Sees calls of torch's functions before torch takes them to pieces."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._recorder.is_paused():
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        is_whole = name in _WHOLE and self._recorder.training is None
        if is_whole and not kwargs.get("return_indices"):
            return self._recorder.record_whole(func, args, kwargs)
        if name in _FROM_PYTHON and any(map(is_tensor, tree_flatten(args[:1])[0])):
            self._recorder.refuse("a tensor is made of others' numbers")
        elif name in _PAST_DISPATCH and any(map(is_tensor, args[1:])):
            self._recorder.refuse(f"{name} is not seen by the dispatcher")
        return func(*args, **kwargs)


class _Again:
    """The recorder is asked again, by what an operator consists of."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder

    def __enter__(self) -> None:
        TorchDispatchMode.__enter__(self._recorder)

    def __exit__(self, *error: Any) -> None:
        TorchDispatchMode.__exit__(self._recorder, *error)


class Recorder(TorchDispatchMode):
    """The operators of one call, as a :class:`Graph`.

    Whatever cannot be recorded is a refusal, with which the call goes on as ever.

    Parameters
    ----------
    arguments : list of Tensor
        Those of the call, in order.
    of_modules : dict
        Tensors of modules, by their places.
    sees_functions : bool
        Look at torch's functions as well, which layers of attention would notice.
    learnt : dict, optional
        Parameters, where the call is a training step; else nothing that lives on may be
        written.
    objects : list, optional
        Of the program's, which a training step must not change by itself.
    is_functional : bool
        A graph of operators is called: arguments may overlap, and be written, and views
        of them be returned.
    observe : callable, optional
        Is told, as a profile function is, of all that the call executes, which is then
        never made a second time.
    """

    def __init__(
        self,
        arguments: list[Tensor],
        of_modules: dict[Place, Tensor],
        sees_functions: bool,
        learnt: dict[Place, Tensor] | None = None,
        objects: list[Any] | None = None,
        is_functional: bool = False,
        observe: Callable[[FrameType, str, Any], None] | None = None,
    ):
        super().__init__()
        self.refusal: CannotPlan | None = None
        self._observe = observe
        self.memories = Memories(arguments, of_modules, is_functional)
        self._is_functional = is_functional
        self.graph = Graph(self.memories.inputs, {}, [], [], [])
        self.training: Training | None = None
        if learnt is not None:
            self.training = Training(self, learnt, objects or [])
        self._operators = Operators(
            self.graph, self.memories, self.training is not None, is_functional
        )
        self._functions = _Functions(self) if sees_functions else None

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import it, which takes seconds, and ask it at each operator.

        Nothing is recorded while Dynamo looks at the calls of a thread.
        """
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self.refuse(f"{func} takes functions")
        is_aside = self.refusal is not None or self.is_paused()
        if is_aside or func.namespace == "profiler":
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with _Again(self):
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        sys.setprofile(None)  # which would tell of all that is done here
        try:
            with self.refusing():
                note = self._operators.before(func, args, kwargs)
            result = func(*args, **kwargs)
            with self.refusing():
                if self.refusal is None:
                    note(result)
        finally:
            sys.setprofile(self._look)
        return result

    def is_paused(self) -> bool:
        """Operators are those of a call that is a node."""
        return self.training is not None and self.training.is_paused

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """What cannot be recorded, within it, is a refusal."""
        try:
            yield
        except CannotPlan as refusal:
            self.refusal = refusal.with_traceback(None)
        except Exception as error:  # tensors of kinds that we do not know
            self.refuse(f"it cannot be recorded: {error!r}")

    def __enter__(self) -> Any:
        if self._functions is not None:
            self._functions.__enter__()
        if self.training is not None:
            self.training.__enter__()
        self._is_gone = False
        # What the collector calls, finalizers, would be taken for the call's own.
        self._is_collected = self._observe is not None and gc.isenabled()
        if self._is_collected:
            gc.disable()
        self._look = self._look_at_call
        sys.setprofile(self._look)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        if not self._is_gone:
            self._go(*error)
        if self.training is not None:
            self.training.__exit__(*error)

    def _go(self, *error: Any) -> None:
        """Look no more; what must not be made twice is not left."""
        self._is_gone = True
        error = error or (None, None, None)
        super().__exit__(*error)
        sys.setprofile(None)
        if self._is_collected:
            gc.enable()
        if self._functions is not None:
            self._functions.__exit__(*error)

    def forget(self) -> None:
        """Let go of what belongs to the call."""
        self.training = self._functions = self._observe = None
        del self.memories, self._operators, self._look

    def _look_at_call(self, frame: FrameType, event: str, called: Any) -> None:
        """Python reads a tensor's numbers by functions that torch's modes never see.

        Operators that take functions are compiled, and would stay so for this mode.
        Called for all that Python calls, so names come first.
        """
        if self._observe is not None:
            self._observe(frame, event, called)
        if event == "c_call":
            if called.__name__ in _TOLD and not self.is_paused():
                self._look_at_method(frame, called)
            return
        name = frame.f_code.co_name
        if self.training is not None and self.training.is_of_interest(frame, name):
            self.training.look(frame, event, called)
        elif (
            event == "call"
            and name in _TAKE_FUNCTIONS
            and frame.f_code.co_filename.startswith(_HIGHER_ORDER)
            and not self.is_paused()
        ):
            if self.training is None and self._observe is None:
                raise Leave("an operator takes functions", where(frame))
            self.refuse("an operator takes functions", frame)
            self._go()

    def _look_at_method(self, frame: FrameType, called: Any) -> None:
        owner = getattr(called, "__self__", None)
        if called.__name__ in _READS and isinstance(owner, Tensor):
            self.refuse("a tensor's numbers are read in Python", frame)
        if called.__name__ in _OF_GENERATORS and isinstance(owner, torch.Generator):
            self.refuse("a generator of random numbers is set or read", frame)

    def refuse(self, reason: str, frame: FrameType | None = None) -> None:
        """Record no more, unless that is so already."""
        if self.refusal is None:
            self.refusal = CannotPlan(reason, where(frame))

    def record_whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call as one node, whatever it consists of."""
        place = where()
        with self.refusing():
            read = self._operators.read(args, place)
        with _disable_current_modes():
            result = func(*args, **kwargs)
        with self.refusing():
            if self.refusal is None:
                name = func.__name__
                function = Function(name, _current(func), name == "max_pool1d")
                node = Node(function, read, dict(kwargs), [], place)
                self._operators.note(node, args, kwargs, result)
        return result

    def finish(self, results: Iterable[Tensor]) -> Graph:
        """The graph, once the call has returned these tensors.

        Raises
        ------
        CannotPlan
            What has been met on the way.
        """
        if self.training is not None and self.refusal is None:
            self.training.finish()
        if self.refusal is not None:
            raise self.refusal
        for tensor in results:
            self.graph.results.append(self._result(tensor))
        self._check_kept()
        self._keep_what_is_used()
        return self.graph

    def _result(self, tensor: Tensor) -> Value:
        value = self.memories.value_of(tensor)
        has_learnt = self.training is not None and self.training.has_learnt(tensor)
        wants_grad = tensor.requires_grad and not has_learnt
        if not self.memories.is_given(value) and (
            wants_grad or type(tensor) is not Tensor
        ):
            refusal = CannotPlan("a result wants a gradient")
            refusal.is_silent = self._leaves_backward_to_others()
            raise refusal
        if value.root.over is not None:
            raise CannotPlan("a tensor that the step has changed is returned")
        is_given = self.memories.is_given(value.root) and not self._is_functional
        if is_given and not self.memories.is_itself(tensor):
            raise CannotPlan("a view of an argument or parameter is returned")
        if value.root in self._operators.constants:
            raise CannotPlan("a constant is returned")
        return value

    def _leaves_backward_to_others(self) -> bool:
        return self.training is not None and not self.training.has_begun()

    def _check_kept(self) -> None:
        """What the call has made is gone, but for its results."""
        results = self.graph.result_roots() | self._operators.constants.keys()
        if any(self.memories.kept(results)):
            gc.collect()
            if any(self.memories.kept(results)):
                text = "a tensor that is no result is kept by the program"
                refusal = CannotPlan(text)
                refusal.is_of_first = True  # a cache is filled once
                raise refusal

    def _keep_what_is_used(self) -> None:
        """Of tensors that no operator has made."""
        graph, memories = self.graph, self.memories
        used = {value.root for node in graph.nodes for value in node.inputs()}
        used |= graph.result_roots()
        used |= {value.first() for value in used}
        for reference, value in memories.held:
            if value not in used:
                continue
            tensor = reference()
            if tensor is None:
                raise CannotPlan("a tensor was made outside of torch's operators")
            if self.training is not None and tensor.requires_grad:
                raise CannotPlan("a parameter that no known module has is learnt")
            graph.held.append((tensor, value))
        constants = self._operators.constants
        graph.constants = {v: t for v, t in constants.items() if v in used}
        graph.places = {
            p: value for p, value in memories.places.items() if value in used
        }


def _current(func: Any) -> Any:
    """Calls whatever stands under its name then, which may be ours."""
    name = func.__name__
    if name not in _RECURRENT:
        return func

    def call(*args: Any) -> Any:
        return getattr(torch._VF, name)(*args)

    return call


@functools.cache
def _is_composite(func: Any) -> bool:
    """Torch's own kernel calls others; in inference mode they come to us as a whole."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd")
