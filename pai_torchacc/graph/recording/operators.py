"""Operators that a recorded call makes, as nodes of its graph.

An operator that writes in place becomes the one that does not and makes a new value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph.ir import Graph, Node, Value, values_in
from pai_torchacc.graph.memories import Memories, check_plain, key_of
from pai_torchacc.graph.recording import functional
from pai_torchacc.graph.refusals import CannotPlan, where

_aten = torch.ops.aten

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_NUMBERS = {_aten._local_scalar_dense.default, _aten.equal.default}
"""Operators that give Python a number."""

_BATCH_NORMS = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten.cudnn_batch_norm.default: 5,
}
"""Normalization, and which argument says that running statistics are written."""


_ASK_AUTOGRAD = {_aten.mkldnn_rnn_layer.default}
"""Operators that give less without autograd, which replays are made without."""


class Operators:
    """Makes nodes of operators, before and after they are called.

    Parameters
    ----------
    graph : Graph
        To which nodes are added.
    memories : Memories
        Which values tensors are.
    is_step : bool
        What lives on may be written, as a training step does.
    is_functional : bool
        Arguments may be, too.
    """

    def __init__(
        self, graph: Graph, memories: Memories, is_step: bool, is_functional: bool
    ):
        self.constants: dict[Value, Tensor] = {}
        self._graph = graph
        self._memories = memories
        self._is_step = is_step
        self._is_functional = is_functional

    def before(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Look at a call before it is made; returns what looks at its result."""
        place = where()
        if _DEPENDS_ON_DATA & set(func.tags) and not is_plain_lookup(func, args):
            if func in _NUMBERS and all(map(self._is_fixed, filter(is_tensor, args))):
                return lambda result: None  # the same at each replay
            name = func._schema.name.removeprefix("aten::")
            what = {"_local_scalar_dense": "a tensor's number is read in Python"}
            raise CannotPlan(
                what.get(name, f"the result of {name} depends on the data"), place
            )
        written = statistics_in(func, args)
        if written and not self._is_step:
            raise CannotPlan("batch normalization writes its running statistics", place)
        if self._is_step and func in _ASK_AUTOGRAD:
            raise CannotPlan(f"{func._schema.name} asks whether autograd is on", place)
        if func is _aten.lift_fresh.default:
            return self._keep
        if func is _aten.as_strided.default and self._memories.is_foreign(args[0]):
            raise CannotPlan("as_strided looks at an argument's storage", place)
        if func.namespace == "_c10d_functional":
            raise CannotPlan("ranks talk to each other", place)
        if torch.Tag.inplace_view in func.tags:
            return self._reshaping(func, args[0], place)
        read_args = self.read(args, place)
        read_kwargs = {name: self.read(value, place) for name, value in kwargs.items()}
        if func._schema.is_mutable:
            return self._writing(func, args, kwargs, read_args, read_kwargs, place)
        node = Node(func, read_args, read_kwargs, [], place)
        if written:
            self._check_written(node, written, place)
        return lambda result: self.note(node, args, kwargs, result, written)

    def read(self, argument: Any, place: str) -> Any:
        """An argument, values in the place of its tensors."""
        if isinstance(argument, Tensor):
            return self._memories.value_of(argument, place)
        if isinstance(argument, list | tuple):
            return type(argument)(self.read(item, place) for item in argument)
        return argument

    def _is_fixed(self, tensor: Tensor) -> bool:
        """Nothing that the call is given, or that lives on, has a part in it."""
        left, seen = [self._memories.value_of(tensor).root], set[Value]()
        while left:
            value = left.pop()
            if value in seen or value in self.constants:
                continue
            seen.add(value)
            node = value.made_by
            if node is None or value.over is not None or node.is_random():
                return False
            if node.name.startswith("empty"):
                return False
            left += [read.root for read in node.inputs()]
        return True

    def _keep(self, tensor: Tensor) -> None:
        """Made of Python's numbers: a constant."""
        if isinstance(tensor, Tensor):
            check_plain(tensor)
            with torch.inference_mode(False):
                copy = tensor.detach().clone()
            self.constants[self._memories.add(tensor, None)] = copy

    def note(
        self,
        node: Node,
        args: Any,
        kwargs: Any,
        result: Any,
        written: list[Tensor] | None = None,
    ) -> None:
        """Add a node, now that its call has returned, and has written these."""
        read = {key_of(t) for t in tree_flatten((args, kwargs))[0] if is_tensor(t)}
        results = result if isinstance(result, list | tuple) else [result]
        is_view = False
        for tensor in results:
            if not is_tensor(tensor):
                node.outputs.append(None)
                continue
            check_plain(tensor, node.where)
            if key_of(tensor) in read:  # found again by its memory
                is_view = True
                self._memories.add_view(tensor, node)
                continue
            node.outputs.append(self._memories.add(tensor, node))
        if is_view and any(node.outputs):
            raise CannotPlan(f"{node.name} returns views and new tensors", node.where)
        if not is_view and node.outputs:
            self._graph.nodes.append(node)
        for tensor in written or ():
            self._memories.overwrite(node, tensor)

    def _reshaping(
        self, func: Any, tensor: Tensor, place: str
    ) -> Callable[[Any], None]:
        """The tensor becomes another view of its memory, as is seen when it is read."""
        name = func._schema.name.removeprefix("aten::")
        value = self._memories.base_of(tensor)
        if (
            name in ("set_", "resize_")
            or value is None
            or self._memories.is_given(value)
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
        may_write = self._is_step or self._is_functional
        if may_write and (written := self._living(func, args, kwargs)):
            node = Node(func, read_args, read_kwargs, [], place)
            self._check_written(node, written, place)
            return lambda result: self._written(node, written)
        value = self._memories.base_of(target) if target is not None else None
        if sum(writes) != 1 or not writes[0] or value is None:
            raise CannotPlan(f"{name} writes to its arguments", place)
        if self._memories.is_given(value):
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
            self._graph.nodes.append(node)
            if is_laid_out_so:
                node.outputs.append(self._memories.add(target, node))
            else:
                self._write_part(node, view, target)

        return note

    def _living(self, func: Any, args: Any, kwargs: Any) -> list[Tensor]:
        """What an operator writes, where that is what lives on."""
        written = []
        for i, argument in enumerate(func._schema.arguments):
            if argument.is_write:
                given = args[i] if i < len(args) else kwargs.get(argument.name)
                written += [t for t in tree_flatten(given)[0] if is_tensor(t)]
        return written if all(map(self._memories.is_foreign, written)) else []

    def _check_written(self, node: Node, written: list[Tensor], place: str) -> None:
        for tensor in written:
            value = self._memories.value_of(tensor, place)
            if self._memories.overlaps(tensor):
                raise CannotPlan("two arguments share memory, and one is written")
            is_argument = value.root.first() in self._graph.inputs
            if not value.is_whole() or (is_argument and not self._is_functional):
                raise CannotPlan(f"{node.name} writes to an argument or a part", place)

    def _written(self, node: Node, written: list[Tensor]) -> None:
        self._graph.nodes.append(node)
        for tensor in written:
            self._memories.overwrite(node, tensor)

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
        self._graph.nodes.append(whole.made_by)
        self._memories.put(target, whole)


def _keeps_layout(node: Node, value: Value) -> bool:
    """A new tensor will lie as the one that the program has written to."""
    return value.is_contiguous() or functional.result_of(node).stride() == value.strides


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


def is_tensor(object: Any) -> bool:
    """Whether it is one, as ``filter`` and ``map`` ask."""
    return isinstance(object, Tensor)
