"""Batches from worker processes through memory that all of them share.

torch sends each tensor of a batch as a file of shared memory, which is made, mapped,
filled with fresh pages and taken down again. Here a loader's workers have a few slots
of one mapping, that are used again and again: a worker collates into a slot and sends
where it lies; the loader's process copies it into tensors of its own, and gives the
slot back. A batch that no slot is free or large enough for goes torch's way.

Only workers that are forked have the mapping. It has no name and ends with its last
process.
"""

from __future__ import annotations

import mmap
import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import get_worker_info
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from pai_torchacc import _C

SLOT_BYTES = 64 << 20
"""Of address space; memory is there as far as batches were large."""

_MOST_SLOTS = 256
_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
)
_ALIGNMENT = 64
_NORESERVE = 0x4000  # which Python's mmap does not name

_rings: weakref.WeakValueDictionary[int, Ring] = weakref.WeakValueDictionary()
"""By a number that the messages have."""


class Ring:
    """The slots of one loader's iterator; each worker has as many, its own.

    A slot's byte at the beginning of the mapping is 1 from when a worker takes it until
    the loader's process gives it back.

    Raises
    ------
    OSError
        There is no address space for it.
    """

    def __init__(self, n_workers: int, slots_each: int):
        self.slots_each = max(1, min(slots_each, _MOST_SLOTS // n_workers))
        self._head = mmap.PAGESIZE
        length = self._head + n_workers * self.slots_each * SLOT_BYTES
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NORESERVE
        self.memory = mmap.mmap(-1, length, flags=flags)
        self.owner = os.getpid()
        self.number = id(self)
        self.received = 0
        _rings[self.number] = self

    def take(self, worker: int) -> Slot | None:
        """A free slot of a worker's, or None."""
        first = worker * self.slots_each
        slot = _C.ring_take(self.memory, first, self.slots_each)
        return None if slot < 0 else Slot(self, slot)

    def give_back(self, slot: int) -> None:
        """A slot is free again."""
        _C.ring_give(self.memory, slot)

    def begin_of(self, slot: int) -> int:
        """Where a slot lies in the mapping."""
        return self._head + slot * SLOT_BYTES


@dataclass(frozen=True)
class _Part:
    """A tensor in a slot."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Named:
    """A named tuple, whose class may do anything when it is called."""

    kind: type
    parts: tuple[Any, ...]


class Slot:
    """A slot that a worker fills."""

    def __init__(self, ring: Ring, number: int):
        self._ring, self._number = ring, number
        self._begin = ring.begin_of(number)
        self._used = 0
        self._parts: dict[int, _Part] = {}

    def tensor(self, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor | None:
        """A tensor to be filled; None where it has no room, or no elements."""
        n = 1
        for size in shape:
            n *= size
        bytes_ = n * dtype.itemsize
        begin = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if not n or begin + bytes_ > SLOT_BYTES or dtype not in _DTYPES:
            return None
        offset = self._begin + begin
        flat = torch.frombuffer(self._ring.memory, dtype=dtype, count=n, offset=offset)
        made = flat.view(shape)
        self._used = begin + bytes_
        self._parts[made.data_ptr()] = _Part(dtype, shape, offset)
        return made

    def message(self, batch: Any) -> Any:
        """What is sent for a batch: its tensors are where this slot has them."""
        packed = self._packed(batch)
        if not self._parts:
            self._ring.give_back(self._number)
            return batch
        return _Message((self._ring.number, self._number, packed))

    def drop(self) -> None:
        """Nothing is sent after all."""
        self._ring.give_back(self._number)

    def _packed(self, value: Any) -> Any:
        if type(value) is Tensor:
            return self._packed_tensor(value)
        if type(value) in (list, tuple):
            return type(value)([self._packed(v) for v in value])
        if type(value) is dict:
            return {k: self._packed(v) for k, v in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return _Named(type(value), tuple(self._packed(v) for v in value))
        return value

    def _packed_tensor(self, tensor: Tensor) -> Any:
        part = self._parts.get(tensor.data_ptr())
        if part is not None and (part.dtype, part.shape) == (
            tensor.dtype,
            tensor.shape,
        ):
            return part
        if tensor.requires_grad or not tensor.is_contiguous() or not is_dense(tensor):
            return tensor
        place = self.tensor(tensor.dtype, tuple(tensor.shape))
        if place is None:
            return tensor
        place.copy_(tensor)
        return self._parts[place.data_ptr()]


class _Message:
    """Sent by a worker; becomes a :class:`Batch` where it is received."""

    def __init__(self, content: tuple[int, int, Any]):
        self._content = content

    def __reduce__(self) -> Any:
        return Batch, self._content


class Batch:
    """A batch that lies in a slot, which it gives back once it is opened or dropped."""

    def __init__(self, ring: int, slot: int, packed: Any):
        self._ring: Ring | None = _rings.get(ring)
        self._slot, self._packed = slot, packed

    def open(self) -> Any:
        """The batch, in memory of its own."""
        ring = self._ring
        if ring is None:
            raise RuntimeError("a batch was opened after its loader had ended")
        batch = _unpacked(self._packed, ring)
        ring.received += 1
        self._give_back()
        return batch

    def pin_memory(self, device: Any = None) -> Any:
        """The batch in pinned memory: what torch's own thread for that calls."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return pin_memory(self.open(), device)

    def _give_back(self) -> None:
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.give_back(self._slot)

    def __del__(self) -> None:
        self._give_back()


def _unpacked(value: Any, ring: Ring) -> Any:
    if type(value) is _Part:
        made = torch.empty(value.shape, dtype=value.dtype, device="cpu")
        _C.ring_read(ring.memory, value.offset, made.view(-1).view(torch.uint8))
        return made
    if type(value) in (list, tuple):
        return type(value)([_unpacked(v, ring) for v in value])
    if type(value) is dict:
        return {k: _unpacked(v, ring) for k, v in value.items()}
    if type(value) is _Named:
        return tuple.__new__(value.kind, [_unpacked(v, ring) for v in value.parts])
    return value


def is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie in the CPU's memory, as they are."""
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.is_quantized
    )


def slot_of_this_worker(ring: Ring | None) -> Slot | None:
    """A free slot, in a worker process that was forked with this ring."""
    worker = get_worker_info()
    if ring is None or worker is None or os.getpid() == ring.owner:
        return None
    return ring.take(worker.id)


def collated_into(slot: Slot, samples: list[Any]) -> Any:
    """What the default collate function makes of samples, tensors in the slot."""

    def stacked(batch: Any, *, collate_fn_map: Any = None) -> Tensor:
        first = batch[0]
        out = None
        if type(first) is Tensor and is_dense(first) and not first.is_nested:
            out = slot.tensor(first.dtype, (len(batch), *first.shape))
        if out is None or first.requires_grad:
            return default_collate_fn_map[Tensor](batch, collate_fn_map=collate_fn_map)
        return torch.stack(batch, 0, out=out)

    return collate(samples, collate_fn_map={**default_collate_fn_map, Tensor: stacked})
