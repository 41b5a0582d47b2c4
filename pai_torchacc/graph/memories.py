"""Which value lies in which memory, while a call is recorded.

Nothing is kept alive: storages are known by weak references, by which their addresses
stay theirs, and of tensors only the geometry stays.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from pai_torchacc.graph.dtypes import DTYPE_CODES
from pai_torchacc.graph.ir import Node, Value
from pai_torchacc.graph.refusals import CannotPlan
from pai_torchacc.graph.signature import is_dense

HOMES = ("_parameters", "_buffers")
"""Where modules have tensors, as ``graph/guards.h`` numbers them."""

Place = tuple[int, str, str]
"""A module of those under guard, where it has its tensors, and a name there."""


class Memories:
    """Values by the storages of tensors.

    Parameters
    ----------
    arguments : list of Tensor
        Those of the call, in order.
    of_modules : dict
        Tensors of modules, by their places. They are kept alive, so that no other
        tensor takes their addresses.
    may_overlap : bool
        Arguments may, and are not written where they do.
    """

    def __init__(
        self,
        arguments: list[Tensor],
        of_modules: dict[Place, Tensor],
        may_overlap: bool = False,
    ):
        self.inputs: list[Value] = []
        self.places: dict[Place, Value] = {}
        """Those of modules' tensors that have been read."""
        self.held: list[tuple[weakref.ref[Tensor], Value]] = []
        """Other tensors that no operator has made."""
        self._bases: dict[int, Value] = {}
        self._storages: dict[int, StorageWeakRef] = {}
        self._offsets: dict[Value, int] = {}
        self._given: set[Value] = set()
        self._shown: dict[Value, int] = {}
        self._identities: dict[Value, int] = {}
        self._latest: dict[Value, Value] = {}
        """Of what lives on and has been written, by what it held first."""
        self._views: dict[int, tuple[weakref.ref[Tensor], Value]] = {}
        self._arguments: dict[int, Value] = {}
        self._overlapping: set[int] = set()
        self._of_modules = of_modules
        self._places: dict[int, Place] = {}
        self._modules_memory: dict[int, int] = {}
        seen: set[int] = set()
        for tensor in arguments:
            check_plain(tensor)
            if (key := key_of(tensor)) in seen:
                if not may_overlap:
                    raise CannotPlan("two arguments share memory")
                self._overlapping.add(key)
            seen.add(key)
            self.inputs.append(self._give(tensor))
            self._arguments[id(tensor)] = self.inputs[-1]
        for place, tensor in of_modules.items():
            if not is_dense(tensor) or tensor.device.type != "cpu":
                continue  # refused where it is read
            key = key_of(tensor)
            if key in seen:
                raise CannotPlan(f"an argument is the module's own {place[2]}")
            if self._modules_memory.setdefault(key, id(tensor)) != id(tensor):
                raise CannotPlan("two tensors of modules share memory")
            self._places.setdefault(id(tensor), place)

    def base_of(self, tensor: Tensor) -> Value | None:
        """The value that has the tensor's memory; None: it has not been met."""
        return self._bases.get(key_of(tensor))

    def is_given(self, value: Value) -> bool:
        """No operator has made it, or the program can see it change."""
        return value in self._given

    def is_foreign(self, tensor: Tensor) -> bool:
        """It has not been met, or is given."""
        base = self.base_of(tensor)
        return base is None or base in self._given

    def is_itself(self, tensor: Tensor) -> bool:
        """It is a given tensor, and no view of one."""
        value = self.base_of(tensor)
        return value is not None and self._identities.get(value) == id(tensor)

    def value_of(self, tensor: Tensor, place: str = "") -> Value:
        """The value of a tensor that is read at that place of the program."""
        check_plain(tensor, place)
        base = self.base_of(tensor)
        if base is None:
            base = self._meet(tensor)
        if self.overlaps(tensor):
            base = self._argument_behind(tensor)
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

    def add(self, tensor: Tensor, node: Node | None) -> Value:
        """A value for a tensor that is the first of its memory to be met."""
        value = Value(tuple(tensor.shape), tensor.stride(), tensor.dtype, node)
        storage = tensor.untyped_storage()
        self._bases[storage._cdata] = value
        self._storages[storage._cdata] = StorageWeakRef(storage)
        self._offsets[value] = tensor.storage_offset()
        return value

    def add_view(self, tensor: Tensor, node: Node) -> None:
        """A node has made a view of the first tensor that it reads."""
        self._views[id(tensor)] = weakref.ref(tensor), next(node.inputs()).root

    def overlaps(self, tensor: Tensor) -> bool:
        """It lies in the memory of several arguments."""
        return key_of(tensor) in self._overlapping

    def _argument_behind(self, tensor: Tensor) -> Value:
        """Of several that overlap, the one that it is, or has been made a view of."""
        if id(tensor) in self._arguments:
            return self._arguments[id(tensor)]
        reference, base = self._views.get(id(tensor), (None, None))
        if reference is None or base is None or reference() is not tensor:
            raise CannotPlan("two arguments share memory")
        return base

    def put(self, tensor: Tensor, whole: Value) -> None:
        """Its whole memory holds another value by now."""
        before = self._bases[key_of(tensor)]
        self._bases[key_of(tensor)] = whole
        self._offsets[whole] = self._offsets[before]

    def kept(self, others: Iterable[Value]) -> Iterator[Value]:
        """Values that were made, are still in memory, and are none of the others."""
        expected = self._given | self._shown.keys() | set(others)
        for key, value in self._bases.items():
            if value not in expected and not self._storages[key].expired():
                yield value

    # --- what lives on and is written

    def show(self, value: Value, tensor: Tensor) -> None:
        """The program can see a tensor from now on, and change it."""
        self._shown[value.root] = id(tensor)

    def overwrite(self, node: Node, tensor: Tensor) -> None:
        """A node writes to a tensor that lives on."""
        self._become(node, key_of(tensor), id(tensor))

    def overwrite_all(self, node: Node) -> None:
        """A node may write to whatever the program can see, but for arguments."""
        known = self._shown | self._identities
        of_modules = set(self.places.values())
        for key, before in list(self._bases.items()):
            if before not in known or before in self.inputs:
                continue
            # A module's tensor lives on, perhaps with other memory.
            if before.first() in of_modules or not self._storages[key].expired():
                self._become(node, key, known[before])
        for place, value in self.places.items():
            self._follow(self._of_modules[place], self._latest.get(value, value))

    def _follow(self, tensor: Tensor, value: Value) -> None:
        """A tensor of a module's may have been given other memory."""
        key = key_of(tensor)
        if key in self._bases:
            return
        if (tuple(tensor.shape), tensor.stride()) != (value.sizes, value.strides):
            raise CannotPlan("a parameter is given another shape")
        storage = tensor.untyped_storage()
        self._bases[key] = value
        self._storages[key] = StorageWeakRef(storage)
        self._offsets[value] = tensor.storage_offset()

    def _become(self, node: Node, key: int, identity: int) -> None:
        before = self._bases[key]
        after = Value(before.sizes, before.strides, before.dtype, node, over=before)
        node.writes.append(after)
        self._given.add(after)
        self._identities[after] = identity
        self._bases[key] = after
        self._offsets[after] = self._offsets[before]
        self._latest[after.first()] = after

    # ---

    def _give(self, tensor: Tensor) -> Value:
        value = self.add(tensor, None)
        self._given.add(value)
        self._identities[value] = id(tensor)
        return value

    def _is_known(self, tensor: Tensor, base: Value) -> bool:
        """It is the given tensor, or a view that a recorded operator has made of it."""
        reference, _ = self._views.get(id(tensor), (None, None))
        is_view = reference is not None and reference() is tensor
        return is_view or self._identities[base] == id(tensor)

    def _meet(self, tensor: Tensor) -> Value:
        """A tensor that no operator has made: a module's, or one of the program's."""
        place = self._places.get(id(tensor))
        if place is None and key_of(tensor) in self._modules_memory:
            raise CannotPlan("a tensor shares memory with a module's")
        value = self._give(tensor)
        if place is not None:
            self.places[place] = value
        else:
            self.held.append((weakref.ref(tensor), value))
        return value


def tensors_of(modules: list[nn.Module]) -> dict[Place, Tensor]:
    """All parameters and buffers by their places."""
    return {
        (i, home, name): tensor
        for i, module in enumerate(modules)
        for home in HOMES
        for name, tensor in module.__dict__[home].items()
        if tensor is not None
    }


def key_of(tensor: Tensor) -> int:
    """The same of tensors that share memory."""
    return tensor.untyped_storage()._cdata


def check_plain(tensor: Tensor, place: str = "") -> None:
    """Raise :class:`CannotPlan` unless plans know tensors of its kind."""
    check_alike(tensor, place)
    if tensor.device.type != "cpu":
        raise CannotPlan("only dense tensors on the CPU are planned", place)
    if tensor.dtype not in DTYPE_CODES:
        raise CannotPlan(f"tensors of {tensor.dtype} are not planned", place)


def check_alike(tensor: Tensor, place: str = "") -> None:
    """Raise :class:`CannotPlan` unless it is like others of its geometry."""
    if type(tensor) not in (Tensor, torch.nn.Parameter):
        kind = type(tensor).__name__
        raise CannotPlan(f"tensors of the class {kind} take their own ways", place)
    if not is_dense(tensor):
        raise CannotPlan("only dense tensors on the CPU are planned", place)
    if tensor.is_conj() or tensor.is_neg():
        raise CannotPlan("a conjugate view is read", place)
