"""Gradients of one call, summed over the ranks while others are still computed.

As in DistributedDataParallel: parameters are taken together, the last first, for these
have their gradients first. A bucket is sent once all of it is there, and the buckets
before it; so all ranks send in one order, whichever parameters their rows use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.data_parallelism.group import Group

_BYTES = 4 << 20
"""What a bucket holds at least, but for the last of its kind."""


class Buckets:
    """Of the gradients of some tensors; empty again after each backward pass."""

    def __init__(self, group: Group, tensors: Sequence[Tensor]):
        self._group = group
        self._kinds = [(t.shape, t.dtype, t.device) for t in tensors]
        self.places = _divided(tensors)
        """Of each bucket: which tensors' gradients it holds."""
        self._forget()

    def _forget(self) -> None:
        self._filled: dict[int, list[Tensor]] = {}
        self._sent: list[Any] = []
        self._is_there = [False] * len(self._kinds)

    def fill(self, bucket: int, gradients: Sequence[Tensor | None]) -> None:
        """Have its gradients; they are sent when their turn comes.

        Raises
        ------
        RuntimeError
            They are there: a backward pass has failed, and is repeated.
        """
        if bucket in self._filled:
            raise RuntimeError("a backward pass through these gradients has failed")
        places = self.places[bucket]
        for i, gradient in zip(places, gradients, strict=True):
            self._is_there[i] = gradient is not None
        self._filled[bucket] = [
            self._zeros(i) if g is None else g
            for i, g in zip(places, gradients, strict=True)
        ]
        while (following := self._filled.get(len(self._sent))) is not None:
            self._sent.append(self._group.sum_begun(following))
            following.clear()

    def _zeros(self, i: int) -> Tensor:
        shape, dtype, device = self._kinds[i]
        return torch.zeros(shape, dtype=dtype, device=device)

    def sums(self) -> list[Tensor | None]:
        """Of each tensor, waited for; None where no rank has a gradient."""
        for bucket, places in enumerate(self.places):
            if bucket not in self._filled:
                self.fill(bucket, [None] * len(places))
        everyones = self._group.exchange(self._is_there)
        result: list[Tensor | None] = [None] * len(self._kinds)
        for places, sent in zip(self.places, self._sent, strict=True):
            for i, found in zip(places, sent(), strict=True):
                if any(row[i] for row in everyones):
                    result[i] = found
        self._forget()
        return result


def _divided(tensors: Sequence[Tensor]) -> list[list[int]]:
    full: list[list[int]] = []
    filling: dict[Any, tuple[list[int], int]] = {}
    for i in reversed(range(len(tensors))):
        kind = tensors[i].dtype, tensors[i].device
        places, n_bytes = filling.pop(kind, ([], 0))
        places.append(i)
        n_bytes += tensors[i].nbytes
        if n_bytes >= _BYTES:
            full.append(places)
        else:
            filling[kind] = places, n_bytes
    return [*full, *(places for places, _ in filling.values())]
