"""The processes that run the script together, and what they tell each other.

The script's own process group is used where it has made one. Ours is made once and
stays until the process ends: the store behind it does not serve a second one.
"""

from __future__ import annotations

import atexit
import os
import struct
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pai_torchacc.data_parallelism import randomness
from pai_torchacc.data_parallelism.launch import Launch

_WAIT_S = 600
"""How long to wait for a process that does not come, or hangs."""

_ALIGNMENT = 16
"""Bytes that each tensor in a common buffer begins at a multiple of."""


class Group:
    """All ranks: the script's or our process group, and one of Gloo for small talk.

    Small talk goes over the host even where tensors are on GPUs, which nobody then has
    to wait for.
    """

    def __init__(self, launch: Launch):
        wait = _wait()
        self.is_ours = not dist.is_initialized()
        if self.is_ours:
            dist.init_process_group(_backend(launch), timeout=wait)
            atexit.register(_destroy, os.getpid())
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._host = dist.new_group(backend="gloo", timeout=wait)
        self._has_nccl = "nccl" in dist.get_backend()

    def _wire(self, tensor: Tensor) -> tuple[Tensor, Any]:
        """The tensor where a group can send it from, and that group."""
        if tensor.is_cuda and self._has_nccl:
            return tensor, None
        return tensor.cpu(), self._host

    def exchange(self, numbers: Sequence[int]) -> list[list[int]]:
        """The numbers of every rank, which are as many everywhere; 64 bits each."""
        mine = torch.tensor([_signed(n) for n in numbers], dtype=torch.int64)
        everyones = torch.empty(self.size, len(numbers), dtype=torch.int64)
        dist.all_gather(list(everyones), mine, group=self._host)
        return everyones.tolist()

    def all_agree(self, is_fine: bool) -> bool:
        """Whether every rank says so."""
        return all(row[0] for row in self.exchange([is_fine]))

    def rows_of_all(
        self, tensors: Sequence[Tensor], dim: int, sizes: Sequence[int]
    ) -> list[Tensor]:
        """Each tensor of every rank, joined along ``dim``.

        Parameters
        ----------
        tensors : sequence of Tensor
            On one device; alike on all ranks but for ``dim``.
        dim : int
            Along which rank r has ``sizes[r]``.
        sizes : sequence of int
            By rank.
        """
        most = max(sizes)
        parts = [_padded(t.movedim(dim, 0), most) for t in tensors]
        packed = _packed([p.reshape(-1).view(torch.uint8) for p in parts])
        mine, group = self._wire(packed)
        everyones = mine.new_empty(self.size, mine.numel())
        dist.all_gather(list(everyones), mine, group=group)
        everyones = everyones.to(packed.device)
        joined, start = [], 0
        for part in parts:
            n_bytes = part.numel() * part.itemsize
            columns = everyones[:, start : start + n_bytes]
            of_ranks = columns.contiguous().view(part.dtype).view(-1, *part.shape)
            rows = [of_ranks[r, :n] for r, n in enumerate(sizes)]
            joined.append(torch.cat(rows).movedim(0, dim))
            start += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        return joined

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the ranks; they are alike on all of them.

        Raises
        ------
        ValueError
            One is sparse.
        """
        if any(t.layout is not torch.strided for t in tensors):
            raise ValueError("sparse gradients are not summed")
        result = [torch.empty(0)] * len(tensors)
        kinds = dict.fromkeys((t.dtype, t.device) for t in tensors)
        for kind in kinds:
            places = [i for i, t in enumerate(tensors) if (t.dtype, t.device) == kind]
            flat, group = self._wire(
                torch.cat([tensors[i].reshape(-1) for i in places])
            )
            dist.all_reduce(flat, group=group)
            cut = flat.to(kind[1]).split([tensors[i].numel() for i in places])
            for i, part in zip(places, cut, strict=True):
                result[i] = part.view(tensors[i].shape)
        return result

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give these the values that they have on rank 0."""
        with torch.no_grad():
            for tensor in tensors:
                values = tensor.detach().clone(memory_format=torch.contiguous_format)
                values, group = self._wire(values)
                dist.broadcast(values, 0, group=group)
                if self.rank:
                    tensor.copy_(values)

    def draw_alike(self) -> None:
        """Have torch, ``random`` and NumPy go on as they are on rank 0."""
        state = torch.frombuffer(bytearray(randomness.state()), dtype=torch.uint8)
        [[size, *_], *_] = self.exchange([len(state)])
        if self.rank:
            state = torch.empty(size, dtype=torch.uint8)
        dist.broadcast(state, 0, group=self._host)
        if self.rank:
            randomness.go_on_from(bytes(state.tolist()))


def meet(launch: Launch) -> None:
    """Have all ranks draw the same random numbers, before there is a process group.

    By the store that a launcher has set up for ``env://``, which the script may use
    for a group of its own afterwards.
    """
    address = f"env://?rank={launch.rank}&world_size={launch.size}"
    store, _, _ = next(rendezvous(address, timeout=_wait()))
    _stores.append(store)
    store.set_timeout(_wait())
    key = f"pai_torchacc/random/{len(_stores)}"
    if launch.rank == 0:
        store.set(key, randomness.state())
    else:
        randomness.go_on_from(store.get(key))


_stores: list[Any] = []
"""What the ranks have met by: each lives as long as the others may ask."""


def _wait() -> timedelta:
    return timedelta(seconds=_WAIT_S)


def _backend(launch: Launch) -> str:
    """NCCL where each rank of this machine has a GPU of its own."""
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE", launch.size))
    has_all = torch.cuda.is_available() and torch.cuda.device_count() >= n_local
    return "nccl" if has_all and dist.is_nccl_available() else "gloo"


def _destroy(pid: int) -> None:
    if os.getpid() == pid and dist.is_initialized():
        dist.destroy_process_group()


def _signed(number: int) -> int:
    [signed] = struct.unpack("q", struct.pack("Q", int(number) & (1 << 64) - 1))
    return int(signed)


def _padded(rows: Tensor, n: int) -> Tensor:
    rows = rows.detach().contiguous()
    if len(rows) == n:
        return rows
    return torch.cat([rows, rows.new_zeros(n - len(rows), *rows.shape[1:])])


def _packed(parts: Sequence[Tensor]) -> Tensor:
    gaps = [p.new_zeros(-p.numel() % _ALIGNMENT) for p in parts]
    return torch.cat([t for pair in zip(parts, gaps, strict=True) for t in pair])


_made: list[Group] = []


def of(launch: Launch) -> Group:
    """The group of this process, made at the first call, by all ranks at once."""
    if not _made:
        _made.append(Group(launch))
    return _made[0]
