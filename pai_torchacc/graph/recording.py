"""Recording one call: torch's dispatcher shows each operator while it runs.

The call is made as ever, by torch, and returns what it returns. Nothing of it is kept
alive: storages are known by weak references, and of tensors only their geometry stays.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph.ir import Function, Graph, Node, Value
from pai_torchacc.graph.refusals import CannotPlan, where

_aten = torch.ops.aten

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_BATCH_NORMS = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten.cudnn_batch_norm.default: 5,
}
"""Normalization, and which argument says that running statistics are written."""


_READS = frozenset({"numpy", "tolist"})

_FUNCTIONAL = {_aten.bernoulli_.float: _aten.bernoulli.p}
"""Of operators in place whose other form is called otherwise."""

_RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
"""Functions of torch's that are recorded as they are called, not by their parts."""


class _Whole(TorchFunctionMode):
    """Sees calls of functions before torch takes them to pieces."""

    def __init__(self, recorder: Recorder):
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if getattr(func, "__name__", "") not in _RECURRENT or kwargs:
            return func(*args, **(kwargs or {}))
        return self._recorder.record_whole(func, args)


class Recorder(TorchDispatchMode):
    """The operators of one call, as a :class:`Graph`.

    Parameters
    ----------
    arguments : list of Tensor
        Those of the call, in order.
    of_modules : dict
        Tensors of modules, by their places.
    has_recurrent : bool
        Have calls of recurrent layers' functions be single nodes.
    """

    def __init__(
        self,
        arguments: list[Tensor],
        of_modules: dict[tuple[int, str, str], Tensor],
        has_recurrent: bool,
    ):
        super().__init__()
        self._bases: dict[int, Value] = {}
        self._storages: dict[int, StorageWeakRef] = {}
        self._offsets: dict[Value, int] = {}
        self._given: set[Value] = set()
        self._held: list[tuple[weakref.ref[Tensor], Value]] = []
        self._constants: dict[Value, Tensor] = {}
        self.refusal: CannotPlan | None = None
        self.graph = Graph([], {}, [], [], [])
        self._of_modules = of_modules
        self._whole = _Whole(self) if has_recurrent else None
        self._places: dict[int, tuple[int, str, str]] = {
            id(tensor): place for place, tensor in reversed(of_modules.items())
        }
        seen: set[int] = set()
        for tensor in arguments:
            _check_plain(tensor)
            if (key := _key_of(tensor)) in seen:
                raise CannotPlan("two arguments share memory")
            seen.add(key)
            self.graph.inputs.append(self._give(tensor))
        for place, tensor in of_modules.items():
            if _key_of(tensor) in seen:
                raise CannotPlan(f"an argument is the module's own {place[2]}")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.refusal is not None:
            return func(*args, **kwargs)
        try:
            note = self._before(func, args, kwargs)
        except CannotPlan as refusal:
            self.refusal = refusal
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        try:
            note(result)
        except CannotPlan as refusal:
            self.refusal = refusal
        return result

    def __enter__(self) -> Any:
        if self._whole is not None:
            self._whole.__enter__()
        self._profile = sys.getprofile()
        sys.setprofile(self._look_at_call)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        sys.setprofile(self._profile)
        if self._whole is not None:
            self._whole.__exit__(*error)

    def _look_at_call(self, frame: FrameType, event: str, called: Any) -> None:
        """Python reads a tensor's numbers by functions that torch's modes never see."""
        if (
            event == "c_call"
            and called.__name__ in _READS
            and self.refusal is None
            and isinstance(getattr(called, "__self__", None), Tensor)
        ):
            text = "a tensor's numbers are read in Python"
            self.refusal = CannotPlan(text, where(frame))

    def record_whole(self, func: Any, args: Any) -> Any:
        """A call as one node, whatever it consists of."""
        place = where()
        try:
            read = self._read(args, place) if self.refusal is None else ()
        except CannotPlan as refusal:
            self.refusal = refusal
        with _disable_current_modes():
            result = func(*args)
        if self.refusal is None:
            name = func.__name__
            node = Node(Function(name, _current(name)), read, {}, [], place)
            self._note(node, args, {}, result)
        return result

    def finish(self, results: Iterable[Tensor]) -> Graph:
        """The graph, once the call has returned these tensors.

        Raises
        ------
        CannotPlan
            What has been met on the way.
        """
        if self.refusal is not None:
            raise self.refusal
        for tensor in results:
            value = self._value_of(tensor, "")
            if value.base in self._given:
                raise CannotPlan("a view of an argument or parameter is returned")
            if value.root in self._constants:
                raise CannotPlan("a constant is returned")
            self.graph.results.append(value)
        used = {value.root for node in self.graph.nodes for value in node.inputs()}
        used |= self.graph.result_roots()
        for reference, value in self._held:
            if value not in used:
                continue
            tensor = reference()
            if tensor is None:
                raise CannotPlan("a tensor was made outside of torch's operators")
            self.graph.held.append((tensor, value))
        self.graph.constants = {v: t for v, t in self._constants.items() if v in used}
        self.graph.places = {
            place: value for place, value in self.graph.places.items() if value in used
        }
        return self.graph

    # --- values

    def _give(self, tensor: Tensor) -> Value:
        value = self._new_base(tensor, None)
        self._given.add(value)
        return value

    def _new_base(self, tensor: Tensor, node: Node | None) -> Value:
        """A value for a tensor that is the first of its memory to be met."""
        value = Value(tuple(tensor.shape), tensor.stride(), tensor.dtype, node)
        storage = tensor.untyped_storage()
        self._bases[storage._cdata] = value
        self._storages[storage._cdata] = StorageWeakRef(storage)
        self._offsets[value] = tensor.storage_offset()
        return value

    def _value_of(self, tensor: Tensor, place: str) -> Value:
        """The value of a tensor that is read."""
        _check_plain(tensor, place)
        base = self._bases.get(_key_of(tensor))
        if base is None:
            base = self._meet(tensor)
        offset = tensor.storage_offset() - self._offsets[base]
        sizes, strides = tuple(tensor.shape), tensor.stride()
        if tensor.dtype is not base.dtype:
            raise CannotPlan("a tensor's bytes are read as another dtype", place)
        if (sizes, strides, offset) == (base.sizes, base.strides, 0):
            return base
        if offset < 0:
            raise CannotPlan("memory before a tensor's first element is read", place)
        return Value(sizes, strides, tensor.dtype, None, base, offset)

    def _meet(self, tensor: Tensor) -> Value:
        """A tensor that no operator has made: a module's, or one of the program's."""
        owner = tensor
        position = self._places.get(id(tensor))
        if position is None and tensor._base is not None:
            owner, position = tensor._base, self._places.get(id(tensor._base))
        if position is None:
            for at, candidate in self._of_modules.items():
                if _key_of(candidate) == _key_of(tensor):
                    owner, position = candidate, at
                    break
        value = self._give(owner)
        if position is not None:
            self.graph.places[position] = value
        else:
            self._held.append((weakref.ref(owner), value))
        return value

    # --- operators

    def _before(self, func: Any, args: Any, kwargs: Any) -> Callable[[Any], None]:
        """Look at a call before it is made; returns what looks at its result."""
        place = where()
        if _DEPENDS_ON_DATA & set(func.tags) and not _is_plain_lookup(func, args):
            name = func._schema.name.removeprefix("aten::")
            what = {"_local_scalar_dense": "a tensor's number is read in Python"}
            raise CannotPlan(
                what.get(name, f"the result of {name} depends on the data"), place
            )
        if (flag := _BATCH_NORMS.get(func)) is not None and args[flag]:
            raise CannotPlan("batch normalization writes its running statistics", place)
        if func is _aten.lift_fresh.default:
            return self._keep
        read_args = self._read(args, place)
        read_kwargs = {name: self._read(value, place) for name, value in kwargs.items()}
        if func._schema.is_mutable:
            return self._writing(func, args, read_args, read_kwargs, place)
        node = Node(func, read_args, read_kwargs, [], place)
        return lambda result: self._note(node, args, kwargs, result)

    def _read(self, argument: Any, place: str) -> Any:
        if isinstance(argument, Tensor):
            return self._value_of(argument, place)
        if isinstance(argument, list | tuple):
            return type(argument)(self._read(item, place) for item in argument)
        return argument

    def _keep(self, tensor: Tensor) -> None:
        """Made of Python's numbers: a constant."""
        if isinstance(tensor, Tensor):
            _check_plain(tensor)
            self._constants[self._new_base(tensor, None)] = tensor.detach().clone()

    def _note(self, node: Node, args: Any, kwargs: Any, result: Any) -> None:
        read = {_key_of(t) for t in tree_flatten((args, kwargs))[0] if _is_tensor(t)}
        results = result if isinstance(result, list | tuple) else [result]
        is_view = False
        for tensor in results:
            if not _is_tensor(tensor):
                node.outputs.append(None)
                continue
            _check_plain(tensor, node.where)
            if _key_of(tensor) in read:  # found again by its memory
                is_view = True
                continue
            node.outputs.append(self._new_base(tensor, node))
        if is_view and any(node.outputs):
            raise CannotPlan(f"{node.name} returns views and new tensors", node.where)
        if not is_view and node.outputs:
            self.graph.nodes.append(node)

    def _writing(
        self, func: Any, args: Any, read_args: Any, read_kwargs: Any, place: str
    ) -> Callable[[Any], None]:
        """An operator in place: the one that is not makes a new value of it."""
        name = func._schema.name.removeprefix("aten::")
        target = args[0] if args and isinstance(args[0], Tensor) else None
        writes = [argument.is_write for argument in func._schema.arguments]
        value = self._bases.get(_key_of(target)) if target is not None else None
        if sum(writes) != 1 or not writes[0] or value is None:
            raise CannotPlan(f"{name} writes to its arguments", place)
        if value in self._given:
            raise CannotPlan(f"{name} writes to an argument or parameter", place)
        other = _that_does_not_write(func)
        if other is None or len(other._schema.arguments) != len(writes):
            raise CannotPlan(f"{name} has no form that does not write", place)
        if func in _FUNCTIONAL and read_args[1:] == ():
            read_args = (*read_args, func._schema.arguments[1].default_value)
        node = Node(other, read_args, read_kwargs, [], place)

        def note(result: Any) -> None:
            self.graph.nodes.append(node)
            if (view := read_args[0]).base is None:
                node.outputs.append(self._new_base(target, node))
            else:
                self._write_part(node, view, _key_of(target))

        return note

    def _write_part(self, node: Node, view: Value, key: int) -> None:
        """A node makes what a view is to hold: a new value of its whole memory."""
        with torch._C._DisableTorchDispatch():
            made = node.op(*_on_meta(node.args), **_on_meta(node.kwargs))
        part = Value(tuple(made.shape), made.stride(), made.dtype, node)
        node.outputs.append(part)
        base = view.root
        args = (base, part, view.sizes, view.strides, view.offset)
        whole = Value(base.sizes, base.strides, base.dtype)
        whole.made_by = Node(_WITH_PART, args, {}, [whole], node.where)
        self.graph.nodes.append(whole.made_by)
        self._bases[key] = whole
        self._offsets[whole] = self._offsets[base]


def _current(name: str) -> Any:
    """Calls whatever stands under the name then, which may be ours."""

    def call(*args: Any) -> Any:
        return getattr(torch._VF, name)(*args)

    return call


def _with_part(
    base: Tensor, part: Tensor, sizes: Any, strides: Any, offset: int
) -> Tensor:
    """A copy of a tensor that has other numbers in one of its views."""
    whole = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype)
    whole.copy_(base)
    whole.as_strided(sizes, strides, offset).copy_(part)
    return whole


_WITH_PART = Function("with_part", _with_part)


def _on_meta(arguments: Any) -> Any:
    """The same arguments with tensors that have no data."""
    if isinstance(arguments, Value):
        return torch.empty_strided(
            arguments.sizes, arguments.strides, dtype=arguments.dtype, device="meta"
        )
    if isinstance(arguments, dict):
        return {name: _on_meta(value) for name, value in arguments.items()}
    if isinstance(arguments, list | tuple):
        return type(arguments)(_on_meta(item) for item in arguments)
    return arguments


def _that_does_not_write(func: Any) -> Any:
    """The overload that gives a new tensor, where there is one."""
    if func in _FUNCTIONAL:
        return _FUNCTIONAL[func]
    name = func._schema.name.removeprefix("aten::")
    packet = getattr(_aten, name.removesuffix("_"), None)
    overload = func._schema.overload_name or "default"
    return getattr(packet, overload, None) if name.endswith("_") else None


def _is_plain_lookup(func: Any, args: Any) -> bool:
    """Indexing by numbers, whose result has the sizes of the indices."""
    return func is _aten.index.Tensor and all(
        index is None or index.dtype in (torch.int64, torch.int32) for index in args[1]
    )


def _is_tensor(object: Any) -> bool:
    return isinstance(object, Tensor)


def _key_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _check_plain(tensor: Tensor, place: str = "") -> None:
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        kind = type(tensor).__name__
        raise CannotPlan(f"tensors of the class {kind} take their own ways", place)
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise CannotPlan("only dense tensors on the CPU are planned", place)
    if tensor.is_conj() or tensor.is_neg():
        raise CannotPlan("a conjugate view is read", place)
