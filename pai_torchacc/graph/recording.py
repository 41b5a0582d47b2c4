"""Recording one call: torch's dispatcher shows each operator while it runs.

The call is made as ever, by torch, and returns what it returns. Of what it makes
nothing is kept alive: storages are known by weak references, and of tensors only the
geometry stays.
"""

from __future__ import annotations

import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten

from pai_torchacc.graph import functional
from pai_torchacc.graph.ir import Function, Graph, Node, Value, values_in
from pai_torchacc.graph.lowering import DTYPE_CODES
from pai_torchacc.graph.refusals import CannotPlan, where
from pai_torchacc.graph.signature import is_dense

_aten = torch.ops.aten

_DEPENDS_ON_DATA = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

_BATCH_NORMS = {
    _aten.native_batch_norm.default: 5,
    _aten._native_batch_norm_legit.default: 5,
    _aten.cudnn_batch_norm.default: 5,
}
"""Normalization, and which argument says that running statistics are written."""


_READS = frozenset({"numpy", "tolist", "apply_", "map_", "map2_"})

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
        name = getattr(func, "__name__", "")
        if name in _WHOLE and not kwargs.get("return_indices"):
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
    """

    def __init__(
        self,
        arguments: list[Tensor],
        of_modules: dict[tuple[int, str, str], Tensor],
        sees_functions: bool,
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
        self._functions = _Functions(self) if sees_functions else None
        self._places: dict[int, tuple[int, str, str]] = {}
        self._modules_memory: dict[int, int] = {}
        self._identities: dict[Value, int] = {}
        self._views: dict[int, weakref.ref[Tensor]] = {}
        seen: set[int] = set()
        for tensor in arguments:
            _check_plain(tensor)
            if (key := _key_of(tensor)) in seen:
                raise CannotPlan("two arguments share memory")
            seen.add(key)
            self.graph.inputs.append(self._give(tensor))
        for place, tensor in of_modules.items():
            if not is_dense(tensor) or tensor.device.type != "cpu":
                continue  # refused where it is read
            key = _key_of(tensor)
            if key in seen:
                raise CannotPlan(f"an argument is the module's own {place[2]}")
            if self._modules_memory.setdefault(key, id(tensor)) != id(tensor):
                raise CannotPlan("two tensors of modules share memory")
            self._places.setdefault(id(tensor), place)

    supports_higher_order_operators = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self.refuse(f"{func} takes functions")
        if self.refusal is not None:
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):
            with _Again(self):
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        with self._refusing():
            note = self._before(func, args, kwargs)
        result = func(*args, **kwargs)
        with self._refusing():
            if self.refusal is None:
                note(result)
        return result

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except CannotPlan as refusal:
            self.refusal = refusal.with_traceback(None)
        except Exception as error:  # tensors of kinds that we do not know
            self.refuse(f"it cannot be recorded: {error!r}")

    def __enter__(self) -> Any:
        if self._functions is not None:
            self._functions.__enter__()
        self._profile = sys.getprofile()
        sys.setprofile(self._look_at_call)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        sys.setprofile(self._profile)
        if self._functions is not None:
            self._functions.__exit__(*error)

    def _look_at_call(self, frame: FrameType, event: str, called: Any) -> None:
        """Python reads a tensor's numbers by functions that torch's modes never see.

        Operators that take functions are compiled, and would stay so for this mode.
        """
        code = frame.f_code
        if (
            event == "call"
            and code.co_name in _TAKE_FUNCTIONS
            and code.co_filename.startswith(_HIGHER_ORDER)
        ):
            raise Leave("an operator takes functions", where(frame))
        if (
            event == "c_call"
            and called.__name__ in _READS
            and isinstance(getattr(called, "__self__", None), Tensor)
        ):
            self.refuse("a tensor's numbers are read in Python", frame)
        if event == "c_call" and isinstance(
            getattr(called, "__self__", None), torch.Generator
        ):
            self.refuse("a generator of random numbers is set or read", frame)

    def refuse(self, reason: str, frame: FrameType | None = None) -> None:
        """Record no more, unless that is so already."""
        if self.refusal is None:
            self.refusal = CannotPlan(reason, where(frame))

    def record_whole(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A call as one node, whatever it consists of."""
        place = where()
        with self._refusing():
            read = self._read(args, place)
        with _disable_current_modes():
            result = func(*args, **kwargs)
        with self._refusing():
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
        if self.refusal is not None:
            raise self.refusal
        for tensor in results:
            value = self._value_of(tensor, "")
            if value not in self._given and (
                tensor.requires_grad or type(tensor) is not Tensor
            ):
                raise CannotPlan("a result wants a gradient")
            if value.root in self._given and self._identities.get(value) != id(tensor):
                raise CannotPlan("a view of an argument or parameter is returned")
            if value.root in self._constants:
                raise CannotPlan("a constant is returned")
            self.graph.results.append(value)
        self._check_escapes()
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

    def _check_escapes(self) -> None:
        """What the call has made is gone, but for its results."""
        kept = self._given | self.graph.result_roots() | self._constants.keys()
        if self._escaped(kept):
            gc.collect()
            if self._escaped(kept):
                raise CannotPlan("a tensor that is no result is kept by the program")

    def _escaped(self, kept: set[Value]) -> bool:
        return any(
            value not in kept and not self._storages[key].expired()
            for key, value in self._bases.items()
        )

    # --- values

    def _give(self, tensor: Tensor) -> Value:
        value = self._new_base(tensor, None)
        self._given.add(value)
        self._identities[value] = id(tensor)
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
        if base in self._given and not self._is_known(tensor, base):
            raise CannotPlan("a tensor shares memory with a parameter", place)
        if (sizes, strides, offset) == (base.sizes, base.strides, 0):
            return base
        view = Value(sizes, strides, tensor.dtype, None, base, offset)
        if offset < 0 or (view.end() > base.end() and base in self._given):
            raise CannotPlan("memory outside of a tensor is read", place)
        return view

    def _is_known(self, tensor: Tensor, base: Value) -> bool:
        """It is the given tensor, or a view that a recorded operator has made of it."""
        reference = self._views.get(id(tensor))
        is_view = reference is not None and reference() is tensor
        return is_view or self._identities[base] == id(tensor)

    def _meet(self, tensor: Tensor) -> Value:
        """A tensor that no operator has made: a module's, or one of the program's."""
        place = self._places.get(id(tensor))
        if place is None and _key_of(tensor) in self._modules_memory:
            raise CannotPlan("a tensor shares memory with a module's")
        value = self._give(tensor)
        if place is not None:
            self.graph.places[place] = value
        else:
            self._held.append((weakref.ref(tensor), value))
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
        flag = _BATCH_NORMS.get(func)
        if flag is not None and args[flag] and args[flag - 2] is not None:
            raise CannotPlan("batch normalization writes its running statistics", place)
        if func is _aten.lift_fresh.default:
            return self._keep
        if func is _aten.as_strided.default and self._is_given(args[0]):
            raise CannotPlan("as_strided looks at an argument's storage", place)
        if func.namespace == "_c10d_functional":
            raise CannotPlan("ranks talk to each other", place)
        if torch.Tag.inplace_view in func.tags:
            return self._reshaping(func, args[0], place)
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
            with torch.inference_mode(False):
                copy = tensor.detach().clone()
            self._constants[self._new_base(tensor, None)] = copy

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
                self._views[id(tensor)] = weakref.ref(tensor)
                continue
            node.outputs.append(self._new_base(tensor, node))
        if is_view and any(node.outputs):
            raise CannotPlan(f"{node.name} returns views and new tensors", node.where)
        if not is_view and node.outputs:
            self.graph.nodes.append(node)

    def _reshaping(
        self, func: Any, tensor: Tensor, place: str
    ) -> Callable[[Any], None]:
        """The tensor becomes another view of its memory, as is seen when it is read."""
        name = func._schema.name.removeprefix("aten::")
        value = self._bases.get(_key_of(tensor))
        if name in ("set_", "resize_") or value is None or value in self._given:
            raise CannotPlan(f"{name} changes an argument or its memory", place)
        return lambda result: None

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

        def note(result: Any) -> None:
            self.graph.nodes.append(node)
            if (view := read_args[0]).base is None:
                node.outputs.append(self._new_base(target, node))
            else:
                self._write_part(node, view, _key_of(target))

        return note

    def _is_given(self, tensor: Tensor) -> bool:
        base = self._bases.get(_key_of(tensor))
        return base is None or base in self._given

    def _check_dtype(self, node: Node, value: Value, place: str) -> None:
        """What is written in place keeps its dtype, whatever is written."""
        if all(read.dtype is value.dtype for read in node.inputs()):
            return
        if functional.result_of(node).dtype is not value.dtype:
            raise CannotPlan(f"{node.name} would give another dtype", place)

    def _write_part(self, node: Node, view: Value, key: int) -> None:
        """A node makes what a view is to hold: a new value of its whole memory."""
        made = functional.result_of(node)
        part = Value(tuple(made.shape), made.stride(), made.dtype, node)
        node.outputs.append(part)
        base = view.root
        args = (base, part, view.sizes, view.strides, view.offset)
        whole = Value(base.sizes, base.strides, base.dtype)
        whole.made_by = Node(functional.WITH_PART, args, {}, [whole], node.where)
        self.graph.nodes.append(whole.made_by)
        self._bases[key] = whole
        self._offsets[whole] = self._offsets[base]


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


def _view_of(value: Value) -> Any:
    return value.sizes, value.strides, value.offset


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
    if not is_dense(tensor) or tensor.device.type != "cpu":
        raise CannotPlan("only dense tensors on the CPU are planned", place)
    if tensor.is_conj() or tensor.is_neg():
        raise CannotPlan("a conjugate view is read", place)
    if tensor.dtype not in DTYPE_CODES:
        raise CannotPlan(f"tensors of {tensor.dtype} are not planned", place)
