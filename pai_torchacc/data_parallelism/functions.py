"""What torch.nn.parallel does between GPUs of a process, between processes.

A tensor is *common* where every rank has all of it, and all have the same. The script
sees only such: it computes its loss from all rows on every rank. So the gradients that
come from it are common too. Inside a divided call a rank has its own *rows* of inputs
and outputs, and *uses* parameters for these alone: the gradient with respect to a
common parameter is the sum over the ranks of what their uses give.

====================  ==========================  ================
from, to              forward                     backward
====================  ==========================  ================
common to rows        :class:`Rows`               :class:`Whole`
rows to common        :class:`Whole`              :class:`Rows`
common to used        :class:`Used`: itself       :class:`Summed`
used to common        :class:`Summed`: all-reduce :class:`Used`
====================  ==========================  ================

Each is the other's transpose, so gradients of gradients hold as well. All ranks run the
same program, so they come to each collective in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.utils import _pytree as pytree

from pai_torchacc.data_parallelism.buckets import Buckets
from pai_torchacc.data_parallelism.group import Group

Tensors = tuple[Tensor, ...]
Gradients = tuple[Any, ...]
"""A tensor or None for each argument of forward."""


@dataclass(frozen=True)
class Shares:
    """Which rows of a batch are whose."""

    group: Group
    dim: int
    sizes: tuple[int, ...]

    @property
    def start(self) -> int:
        """The first row of this rank."""
        return sum(self.sizes[: self.group.rank])

    @property
    def length(self) -> int:
        """How many rows it has."""
        return self.sizes[self.group.rank]


class Rows(Function):
    """Rows of this rank, of common tensors."""

    @staticmethod
    def forward(ctx: Any, shares: Shares, *tensors: Tensor) -> Tensors:
        ctx.shares = shares
        wanted = shares.dim, shares.start, shares.length
        return tuple(t.narrow(*wanted).clone() for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        wanted = ctx.needs_input_grad[1:]
        present = [
            g for g, is_wanted in zip(gradients, wanted, strict=True) if is_wanted
        ]
        return None, *_spread(wanted, Whole.apply(ctx.shares, *present))


class Whole(Function):
    """Common tensors of every rank's rows."""

    @staticmethod
    def forward(ctx: Any, shares: Shares, *tensors: Tensor) -> Tensors:
        ctx.shares = shares
        ctx.set_materialize_grads(False)
        result = tuple(shares.group.rows_of_all(tensors, shares.dim, shares.sizes))
        wanted = ctx.needs_input_grad[1:]
        constant = [
            t for t, is_wanted in zip(result, wanted, strict=True) if not is_wanted
        ]
        ctx.mark_non_differentiable(*constant)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        wanted = [g is not None for g in gradients]
        present = [g for g in gradients if g is not None]
        return None, *_spread(wanted, Rows.apply(ctx.shares, *present))


class Used(Function):
    """Common tensors, for this rank's rows alone; gradients are times ``weight``.

    With ``buckets``, each of which a :class:`Filling` follows, gradients are on their
    way when they come here.
    """

    @staticmethod
    def forward(
        ctx: Any, group: Group, weight: float, buckets: Buckets | None, *tensors: Tensor
    ) -> Tensors:
        ctx.group, ctx.weight, ctx.buckets = group, weight, buckets
        ctx.kinds = [(t.shape, t.dtype, t.device) for t in tensors]
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if ctx.buckets is None or torch.is_grad_enabled():
            sums = _sums(ctx, gradients)
        else:
            sums = ctx.buckets.sums()
        if ctx.weight != 1:
            sums = [None if g is None else g * ctx.weight for g in sums]
        return None, None, None, *sums


def _sums(ctx: Any, gradients: Gradients) -> Sequence[Tensor | None]:
    # Rows may decide which parameters are used. One that none uses has no gradient.
    everyones = ctx.group.exchange([g is not None for g in gradients])
    wanted = [any(column) for column in zip(*everyones, strict=True)]
    present = [
        torch.zeros(kind[0], dtype=kind[1], device=kind[2]) if g is None else g
        for g, kind, is_wanted in zip(gradients, ctx.kinds, wanted, strict=True)
        if is_wanted
    ]
    return _spread(wanted, Summed.apply(ctx.group, *present))


class Filling(Function):
    """Used tensors that share a bucket, which has their gradients from here on."""

    @staticmethod
    def forward(ctx: Any, buckets: Buckets, bucket: int, *tensors: Tensor) -> Tensors:
        ctx.buckets, ctx.bucket = buckets, bucket
        ctx.set_materialize_grads(False)
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        if torch.is_grad_enabled():  # gradients of gradients go the way of _sums()
            return None, None, *gradients
        ctx.buckets.fill(ctx.bucket, gradients)
        return None, None, *[None for _ in gradients]


def used(group: Group, weight: float, tensors: Sequence[Tensor]) -> Tensors:
    """By :class:`Used`, and by :class:`Filling` for each bucket."""
    buckets = Buckets(group, tensors)
    common = Used.apply(group, weight, buckets, *tensors)
    result = list(common)
    for bucket, places in enumerate(buckets.places):
        own = Filling.apply(buckets, bucket, *[common[i] for i in places])
        for i, tensor in zip(places, own, strict=True):
            result[i] = tensor
    return tuple(result)


class Tied(Function):
    """The first ``n`` tensors, which seem to be computed from all the others.

    Gradients of used tensors are summed on every rank or on none. A rank whose rows use
    no parameter would not come to it by itself.
    """

    @staticmethod
    def forward(ctx: Any, n: int, *tensors: Tensor) -> Tensors:
        ctx.n_others = len(tensors) - n
        ctx.set_materialize_grads(False)
        # Not views, which a script may not change in place.
        return tuple(t.detach() for t in tensors[:n])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Gradients:
        return None, *gradients, *[None] * ctx.n_others


def tied(value: Any, tensors: Sequence[Tensor]) -> Any:
    """A value whose tensors with gradients are :class:`Tied` to these."""
    leaves, spec = pytree.tree_flatten(value)
    wanted = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
    present = [leaf for leaf, is_one in zip(leaves, wanted, strict=True) if is_one]
    if not present:
        return value
    rest = iter(Tied.apply(len(present), *present, *tensors))
    found = [
        next(rest) if is_one else leaf
        for leaf, is_one in zip(leaves, wanted, strict=True)
    ]
    return pytree.tree_unflatten(found, spec)


class Summed(Function):
    """The sum over the ranks."""

    @staticmethod
    def forward(ctx: Any, group: Group, *tensors: Tensor) -> Tensors:
        ctx.group = group
        return tuple(group.sums(tensors))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        return None, *Used.apply(ctx.group, 1, None, *gradients)


def _spread(wanted: Sequence[bool], present: Iterable[Tensor]) -> Gradients:
    """The tensors at the places where one is wanted."""
    rest = iter(present)
    return tuple(next(rest) if is_wanted else None for is_wanted in wanted)
