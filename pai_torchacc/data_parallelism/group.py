"""The processes that run the script together, and what they tell each other.

The script's own process group is used where it has made one. Ours is made once and
stays until the process ends: the store behind it does not serve a second one.
"""

from __future__ import annotations

import atexit
import os
import struct
from collections.abc import Callable, Iterable, Sequence
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


# torch 2.13 has renamed it, and warns of the old name.
_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


class Group:
    """All ranks: the script's or our process group, and one of Gloo for small talk.

    Small talk goes over the host even where tensors are on GPUs, which nobody then has
    to wait for.
    """

    def __init__(self, launch: Launch):
        wait = _wait()
        is_ours = not dist.is_initialized()
        if is_ours:
            dist.init_process_group(_backend(launch), timeout=wait)
        atexit.register(self._close, os.getpid(), is_ours)
        self._world = dist.group.WORLD
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._host = dist.new_group(backend="gloo", timeout=wait)
        # Begun within a backward pass, whose other messages may come before or after.
        self._sums = dist.new_group(backend="gloo", timeout=wait)
        self._has_nccl = "nccl" in dist.get_backend()

    def _close(self, pid: int, is_ours: bool) -> None:
        """End what is ours while Python is whole: groups have threads of their own."""
        if os.getpid() != pid:
            return
        if is_ours and dist.is_initialized():
            dist.destroy_process_group()
        self._world = self._host = self._sums = None

    @property
    def is_there(self) -> bool:
        """Whether the script has not destroyed it, or put another in its place."""
        return dist.is_initialized() and dist.group.WORLD is self._world

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
            Alike on all ranks but for ``dim``.
        dim : int
            Along which rank r has ``sizes[r]``.
        sizes : sequence of int
            By rank.
        """
        begun = []
        for tensor in tensors:
            mine, group = self._wire(_padded(tensor.movedim(dim, 0), max(sizes)))
            joined = mine.new_empty(self.size * len(mine), *mine.shape[1:])
            wires = _bytes(joined), _bytes(mine)
            work = _gather(*wires, group=group, async_op=True)
            begun.append((work, joined))
        result = []
        for tensor, (work, joined) in zip(tensors, begun, strict=True):
            work.wait()
            common = joined.to(tensor.device)
            if dim != 0 or len(set(sizes)) > 1:
                of_ranks = zip(common.chunk(self.size), sizes, strict=True)
                rows = [part[:n].movedim(0, dim) for part, n in of_ranks]
                common = torch.cat(rows, dim)
            result.append(common)
        return result

    def sum_begun(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Begin to sum each tensor over the ranks; what waits for the sums.

        They are of one type, on one device, and alike on all ranks.

        Raises
        ------
        ValueError
            One is sparse.
        """
        if any(t.layout is not torch.strided for t in tensors):
            raise ValueError("sparse gradients are not summed")
        shapes, device = [t.shape for t in tensors], tensors[0].device
        flat, group = self._wire(torch.cat([t.reshape(-1) for t in tensors]))
        if group is not None:
            group = self._sums
        work = dist.all_reduce(flat, group=group, async_op=True)

        def end() -> list[Tensor]:
            work.wait()
            parts = flat.to(device).split([shape.numel() for shape in shapes])
            return [p.view(s) for p, s in zip(parts, shapes, strict=True)]

        return end

    def sums(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor summed over the ranks; they are alike on all of them."""
        kinds = _by_kind(tensors).values()
        begun = [(alike, self.sum_begun(alike)) for alike in kinds]
        found: dict[int, Tensor] = {}
        for alike, end in begun:
            found |= zip(map(id, alike), end(), strict=True)
        return [found[id(tensor)] for tensor in tensors]

    def copy_from_first(self, tensors: Iterable[Tensor]) -> None:
        """Give these the values that they have on rank 0."""
        for (_, device), alike in _by_kind(tensors).items():
            flat, group = self._wire(torch.cat([t.detach().flatten() for t in alike]))
            dist.broadcast(flat, 0, group=group)
            if self.rank:
                parts = flat.to(device).split([t.numel() for t in alike])
                with torch.no_grad():
                    for tensor, values in zip(alike, parts, strict=True):
                        tensor.copy_(values.view(tensor.shape))

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


def _signed(number: int) -> int:
    [signed] = struct.unpack("q", struct.pack("Q", int(number) & (1 << 64) - 1))
    return int(signed)


def _by_kind(tensors: Iterable[Tensor]) -> dict[Any, list[Tensor]]:
    """By type and device: tensors that one buffer may hold."""
    kinds: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return kinds


def _padded(rows: Tensor, n: int) -> Tensor:
    rows = rows.detach().contiguous().resolve_conj().resolve_neg()
    if len(rows) == n:
        return rows
    return torch.cat([rows, rows.new_zeros(n - len(rows), *rows.shape[1:])])


def _bytes(tensor: Tensor) -> Tensor:
    """A view of them: Gloo does not know every type."""
    return tensor.view(-1).view(torch.uint8)


_made: list[Group] = []


def of(launch: Launch) -> Group:
    """The group of this process, made at the first call, by all ranks at once."""
    if not (_made and _made[0].is_there):
        _made[:] = [Group(launch)]
    return _made[0]
