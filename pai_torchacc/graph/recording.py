"""Recording one call: torch's dispatcher shows each operator while it runs.

The call is made as ever, by torch, and returns what it returns. Of what it makes
nothing is kept alive, see ``memories.py``.
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

from pai_torchacc.graph import functional
from pai_torchacc.graph.ir import Function, Graph, Node, Value, values_in
from pai_torchacc.graph.memories import Memories, Place, check_plain, key_of
from pai_torchacc.graph.refusals import CannotPlan, where
from pai_torchacc.graph.training import Training

_aten = torch.ops.aten

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_BATCH_NORMS = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten.cudnn_batch_norm.default: 5,
}
"""Normalization, and which argument says that running statistics are written."""


_ASK_AUTOGRAD = {_aten.mkldnn_rnn_layer.default}
"""Operators that give less without autograd, which replays are made without."""

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
        if name in _FROM_PYTHON and any(map(_is_tensor, tree_flatten(args[:1])[0])):
            self._recorder.refuse("a tensor is made of others' numbers")
        elif name in _PAST_DISPATCH and any(map(_is_tensor, args[1:])):
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
        self._constants: dict[Value, Tensor] = {}
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
                note = self._before(func, args, kwargs)
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
        del self.memories, self._look

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
            read = self._read(args, place)
        with _disable_current_modes():
            result = func(*args, **kwargs)
        with self.refusing():
            if self.refusal is None:
                name = func.__name__
                function = Function(name, _current(func), name == "max_pool1d")
                node = Node(function, read, dict(kwargs), [], place)
                self._note(node, args, kwargs, result)
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
        if value.root in self._constants:
            raise CannotPlan("a constant is returned")
        return value

    def _leaves_backward_to_others(self) -> bool:
        return self.training is not None and not self.training.has_begun()

    def _check_kept(self) -> None:
        """What the call has made is gone, but for its results."""
        results = self.graph.result_roots() | self._constants.keys()
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
        graph.constants = {v: t for v, t in self._constants.items() if v in used}
        graph.places = {
            p: value for p, value in memories.places.items() if value in used
        }

    # --- operators

    def _before(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Look at a call before it is made; returns what looks at its result."""
        place = where()
        if _DEPENDS_ON_DATA & set(func.tags) and not is_plain_lookup(func, args):
            name = func._schema.name.removeprefix("aten::")
            what = {"_local_scalar_dense": "a tensor's number is read in Python"}
            raise CannotPlan(
                what.get(name, f"the result of {name} depends on the data"), place
            )
        written = statistics_in(func, args)
        if written and self.training is None:
            raise CannotPlan("batch normalization writes its running statistics", place)
        if self.training is not None and func in _ASK_AUTOGRAD:
            raise CannotPlan(f"{func._schema.name} asks whether autograd is on", place)
        if func is _aten.lift_fresh.default:
            return self._keep
        if func is _aten.as_strided.default and self.memories.is_foreign(args[0]):
            raise CannotPlan("as_strided looks at an argument's storage", place)
        if func.namespace == "_c10d_functional":
            raise CannotPlan("ranks talk to each other", place)
        if torch.Tag.inplace_view in func.tags:
            return self._reshaping(func, args[0], place)
        read_args = self._read(args, place)
        read_kwargs = {name: self._read(value, place) for name, value in kwargs.items()}
        if func._schema.is_mutable:
            return self._writing(func, args, kwargs, read_args, read_kwargs, place)
        node = Node(func, read_args, read_kwargs, [], place)
        if written:
            self._check_written(node, written, place)
        return lambda result: self._note(node, args, kwargs, result, written)

    def _read(self, argument: Any, place: str) -> Any:
        if isinstance(argument, Tensor):
            return self.memories.value_of(argument, place)
        if isinstance(argument, list | tuple):
            return type(argument)(self._read(item, place) for item in argument)
        return argument

    def _keep(self, tensor: Tensor) -> None:
        """Made of Python's numbers: a constant."""
        if isinstance(tensor, Tensor):
            check_plain(tensor)
            with torch.inference_mode(False):
                copy = tensor.detach().clone()
            self._constants[self.memories.add(tensor, None)] = copy

    def _note(
        self,
        node: Node,
        args: Any,
        kwargs: Any,
        result: Any,
        written: list[Tensor] | None = None,
    ) -> None:
        read = {key_of(t) for t in tree_flatten((args, kwargs))[0] if _is_tensor(t)}
        results = result if isinstance(result, list | tuple) else [result]
        is_view = False
        for tensor in results:
            if not _is_tensor(tensor):
                node.outputs.append(None)
                continue
            check_plain(tensor, node.where)
            if key_of(tensor) in read:  # found again by its memory
                is_view = True
                self.memories.add_view(tensor, node)
                continue
            node.outputs.append(self.memories.add(tensor, node))
        if is_view and any(node.outputs):
            raise CannotPlan(f"{node.name} returns views and new tensors", node.where)
        if not is_view and node.outputs:
            self.graph.nodes.append(node)
        for tensor in written or ():
            self.memories.overwrite(node, tensor)

    def _reshaping(
        self, func: Any, tensor: Tensor, place: str
    ) -> Callable[[Any], None]:
        """The tensor becomes another view of its memory, as is seen when it is read."""
        name = func._schema.name.removeprefix("aten::")
        value = self.memories.base_of(tensor)
        if (
            name in ("set_", "resize_")
            or value is None
            or self.memories.is_given(value)
        ):
            raise CannotPlan(f"{name} changes an argument or its memory", place)
        return lambda result: None

    def _writing(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        read_args: Any,
        read_kwargs: Any,
        place: str,
    ) -> Callable[[Any], None]:
        """An operator in place: the one that is not makes a new value of it."""
        name = func._schema.name.removeprefix("aten::")
        target = args[0] if args and isinstance(args[0], Tensor) else None
        writes = [argument.is_write for argument in func._schema.arguments]
        may_write = self.training is not None or self._is_functional
        if may_write and (written := self._living(func, args, kwargs)):
            node = Node(func, read_args, read_kwargs, [], place)
            self._check_written(node, written, place)
            return lambda result: self._written(node, written)
        value = self.memories.base_of(target) if target is not None else None
        if sum(writes) != 1 or not writes[0] or value is None:
            raise CannotPlan(f"{name} writes to its arguments", place)
        if self.memories.is_given(value):
            raise CannotPlan(f"{name} writes to an argument or parameter", place)
        if read_args[0].base is not None and any(
            argument.root is value and _view_of(argument) != _view_of(read_args[0])
            for argument in values_in((*read_args[1:], *read_kwargs.values()))
        ):
            raise CannotPlan(f"{name} reads and writes overlapping views", place)
        other = functional.form_of(func)
        if other is None:
            raise CannotPlan(f"{name} has no form that does not write", place)
        read_args = functional.completed(func, read_args)
        node = Node(other, read_args, read_kwargs, [], place)
        self._check_dtype(node, value, place)
        view = read_args[0]
        is_laid_out_so = view.base is None and _keeps_layout(node, value)
        if view.base is None and not is_laid_out_so and value.is_dense():
            node = Node(functional.on_a_copy(func), args, read_kwargs, [], place)
            node.args, is_laid_out_so = read_args, True
        elif not is_laid_out_so and node.is_random():
            raise CannotPlan(f"{name} draws into a part of a tensor", place)

        def note(result: Any) -> None:
            self.graph.nodes.append(node)
            if is_laid_out_so:
                node.outputs.append(self.memories.add(target, node))
            else:
                self._write_part(node, view, target)

        return note

    # --- what lives on and is written, in a training step

    def _living(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        """What an operator writes, where that is what lives on."""
        written = []
        for i, argument in enumerate(func._schema.arguments):
            if argument.is_write:
                given = args[i] if i < len(args) else kwargs.get(argument.name)
                written += [t for t in tree_flatten(given)[0] if _is_tensor(t)]
        return written if all(map(self.memories.is_foreign, written)) else []

    def _check_written(self, node: Node, written: list[Tensor], place: str) -> None:
        for tensor in written:
            value = self.memories.value_of(tensor, place)
            if self.memories.overlaps(tensor):
                raise CannotPlan("two arguments share memory, and one is written")
            is_argument = value.root.first() in self.graph.inputs
            if not value.is_whole() or (is_argument and not self._is_functional):
                raise CannotPlan(f"{node.name} writes to an argument or a part", place)

    def _written(self, node: Node, written: list[Tensor]) -> None:
        self.graph.nodes.append(node)
        for tensor in written:
            self.memories.overwrite(node, tensor)

    def _check_dtype(self, node: Node, value: Value, place: str) -> None:
        """What is written in place keeps its dtype, whatever is written."""
        if all(read.dtype is value.dtype for read in node.inputs()):
            return
        if functional.result_of(node).dtype is not value.dtype:
            raise CannotPlan(f"{node.name} would give another dtype", place)

    def _write_part(self, node: Node, view: Value, target: Tensor) -> None:
        """A node makes what a view is to hold: a new value of its whole memory."""
        made = functional.result_of(node)
        part = Value(tuple(made.shape), made.stride(), made.dtype, node)
        node.outputs.append(part)
        base = view.root
        args = (base, part, view.sizes, view.strides, view.offset)
        whole = Value(base.sizes, base.strides, base.dtype)
        whole.made_by = Node(functional.WITH_PART, args, {}, [whole], node.where)
        self.graph.nodes.append(whole.made_by)
        self.memories.put(target, whole)


def _current(func: Any) -> Any:
    """Calls whatever stands under its name then, which may be ours."""
    name = func.__name__
    if name not in _RECURRENT:
        return func

    def call(*args: Any) -> Any:
        return getattr(torch._VF, name)(*args)

    return call


def _keeps_layout(node: Node, value: Value) -> bool:
    """A new tensor will lie as the one that the program has written to."""
    return value.is_contiguous() or functional.result_of(node).stride() == value.strides


@functools.cache
def _is_composite(func: Any) -> bool:
    """Torch's own kernel calls others; in inference mode they come to us as a whole."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd")


def statistics_in(func: Any, args: Any) -> list[Tensor]:
    """Running mean and variance, where a batch normalization writes them."""
    flag = _BATCH_NORMS.get(func)
    if flag is None or not args[flag]:
        return []
    return [tensor for tensor in args[flag - 2 : flag] if tensor is not None]


def _view_of(value: Value) -> Any:
    return value.sizes, value.strides, value.offset


def is_plain_lookup(func: Any, args: Any) -> bool:
    """Indexing by numbers, whose result has the sizes of the indices."""
    return func is _aten.index.Tensor and all(
        index is None or index.dtype in (torch.int64, torch.int32) for index in args[1]
    )


def _is_tensor(object: Any) -> bool:
    return isinstance(object, Tensor)
