"""The arguments and results of a call: the tensors in them, and their rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By size in bytes: how numbers are looked at bit by bit."""

_PLAIN = (bool, int, float, complex, str, bytes)
"""What else a call is told apart by."""


class Call:
    """What a module is called with.

    ``n_rows`` is the size of the batch. Where there is none, ``obstacle`` says why this
    call cannot be divided.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int):
        self._leaves, self._spec = pytree.tree_flatten((args, kwargs))
        self.dim = dim
        self.n_rows = 0
        self.obstacle = self._count()

    @property
    def tensors(self) -> list[Tensor]:
        """Its tensors that have dimensions; numbers as tensors are for every row."""
        return [t for t in self._leaves if _has_rows(t)]

    def _count(self) -> str | None:
        sizes = {t.shape[self.dim] if t.dim() > self.dim else 0 for t in self.tensors}
        if not sizes:
            return "no tensor with a batch is among its arguments"
        if len(sizes) > 1:
            return f"its arguments have different sizes in dimension {self.dim}"
        if not all(t.layout is torch.strided and not t.is_nested for t in self.tensors):
            return "an argument is sparse or nested"
        [self.n_rows] = sizes
        return None

    def shares(self, n: int) -> tuple[int, ...]:
        """How many rows each of ``n`` ranks takes: as alike as can be."""
        return tuple((self.n_rows + n - 1 - rank) // n for rank in range(n))

    def with_tensors(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """Positional and keyword arguments with these tensors in place of its own."""
        rest = iter(tensors)
        leaves = [next(rest) if _has_rows(t) else t for t in self._leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def changed(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with each tensor changed."""
        args, kwargs = self.with_tensors([change(t) for t in self.tensors])
        return Call(args, kwargs, self.dim)

    def on(self, device: torch.device) -> Call:
        """The same call on a GPU, as DataParallel moves its inputs to one."""
        if device.type == "cpu":
            return self
        return self.changed(lambda t: t.to(device, non_blocking=True))

    def digest(self, with_values: bool) -> int:
        """A number of 63 bits that tells calls apart, also by the order of their rows.

        Without values it goes by types and shapes: values on a GPU would be waited for.
        """
        kinds = [
            (tuple(leaf.shape), str(leaf.dtype)) if isinstance(leaf, Tensor) else leaf
            for leaf in self._leaves
            if isinstance(leaf, (Tensor, *_PLAIN))
        ]
        number = zlib.crc32(repr((kinds, str(self._spec))).encode())
        if with_values:
            for t in self.tensors:
                number = number * 31 + _digest(t.detach())
        return number & (1 << 63) - 1


def _digest(tensor: Tensor) -> int:
    """Its rows' bits as integers, summed, and weighted by where the row stands."""
    if tensor.numel() == 0:
        return 0
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    rows = tensor.contiguous().view(len(tensor), -1)
    n_bytes = rows.shape[1] * rows.itemsize
    # Eight bytes at a time are the fastest. By shapes alone: alike on every rank.
    size = next(n for n in (8, rows.itemsize) if n_bytes % n == 0)
    if rows.storage_offset() * rows.itemsize % size:
        rows = rows.clone()
    rows = rows.view(_INTEGERS[size]).sum(1)
    return int((rows * torch.arange(1, len(rows) + 1, device=rows.device)).sum())


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dim() > 0


def _are_rows(tensor: Tensor, dim: int, n_rows: int) -> bool:
    is_plain = tensor.layout is torch.strided and not tensor.is_nested
    return is_plain and tensor.dim() > dim and tensor.shape[dim] == n_rows


class Results:
    """What a module has given for some rows."""

    def __init__(self, value: Any, dim: int, n_rows: int):
        leaves, self._spec = pytree.tree_flatten(value)
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self.tensors: list[Tensor] = [t for t in leaves if isinstance(t, Tensor)]
        self.are_rows = bool(self.tensors) and all(
            leaf is None or (isinstance(leaf, Tensor) and _are_rows(leaf, dim, n_rows))
            for leaf in leaves
        )
        self._dim = dim

    def digest(self) -> int:
        """A number that is alike where results can be joined."""
        kinds = [
            (t.shape[: self._dim], t.shape[self._dim + 1 :], t.dtype, t.requires_grad)
            for t in self.tensors
        ]
        return zlib.crc32(repr((kinds, str(self._spec))).encode())

    def with_tensors(self, tensors: Sequence[Tensor]) -> Any:
        """The value with these tensors in place of its own."""
        rest = iter(tensors)
        leaves = [next(rest) if is_tensor else None for is_tensor in self._is_tensor]
        return pytree.tree_unflatten(leaves, self._spec)
