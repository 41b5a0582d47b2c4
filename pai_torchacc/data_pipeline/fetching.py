"""Fetching batches: the place of torch's fetcher for datasets of the map style.

A batch is made in one piece where the dataset's code is known, else by stock. The first
time that a dataset is seen with data of some types and dtypes, a few samples are
fetched both ways, and what differs in anything is left to stock for good.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset
from torch.utils.data._utils.collate import default_collate, default_collate_fn_map
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from pai_torchacc import _C
from pai_torchacc.data_pipeline.interpreting import Interpreter, plain_attribute
from pai_torchacc.data_pipeline.ring import (
    Ring,
    Slot,
    collated_into,
    slot_of_this_worker,
)
from pai_torchacc.data_pipeline.values import Column, Group, Unproved
from pai_torchacc.data_pipeline.waiting import Clock

N_TRIED = 8
"""Samples that are fetched both ways."""

_collated = dict(default_collate_fn_map)
_TENSORS = TensorDataset.__getitem__
_SUBSET = (Subset.__getitem__, Subset.__getitems__)


@dataclass
class Knowledge:
    """What is known of one dataset.

    Attributes
    ----------
    reasons : dict
        By signature: None where batches are as stock's, else why stock fetches.
    last : str or None
        Why stock fetched the last batch.
    stock_ns : float or None
        What stock takes for a sample, where it was timed.
    samples : int
        How many were fetched at once.
    """

    reasons: dict[Any, str | None] = field(default_factory=dict)
    last: str | None = None
    stock_ns: float | None = None
    samples: int = 0


_known: dict[int, tuple[Any, Knowledge]] = {}
"""By id of a dataset: a weak reference that takes the entry out, and the knowledge."""


def knowledge_of(dataset: Any) -> Knowledge:
    """What is known of a dataset; of one that cannot be referred to weakly, nothing."""
    key = id(dataset)
    if key not in _known:
        try:
            reference = weakref.ref(dataset, lambda _: _known.pop(key, None))
        except TypeError:
            return Knowledge()
        _known[key] = reference, Knowledge()
    return _known[key][1]


class Fetcher(_MapDatasetFetcher):
    """Fetches a batch at once where that is proved to be the same.

    ``ring`` is what a worker process sends its batches through.
    """

    is_on = False

    def __init__(self, *arguments: Any, ring: Ring | None = None):
        super().__init__(*arguments)
        self.knowledge = knowledge_of(self.dataset)
        self.clock: Clock | None = None
        self._ring = ring

    def fetch(self, possibly_batched_index: Any) -> Any:
        """The batch of these indices."""
        index = possibly_batched_index
        ring = self._ring
        slot = slot_of_this_worker(ring) if ring is not None and self.is_on else None
        if slot is None:
            batch = self._at_once(index)
            return super().fetch(index) if batch is None else batch[0]
        try:
            batch = self._at_once(index)
            if batch is None:
                return slot.message(self._collated_into(slot, index))
            return slot.message(batch[0])
        except BaseException:
            slot.drop()
            raise

    def _collated_into(self, slot: Slot, index: Any) -> Any:
        """As stock, with another collate function than the default one."""
        collate_fn = self.collate_fn
        self.collate_fn = partial(collated_into, slot)
        try:
            return super().fetch(index)
        finally:
            self.collate_fn = collate_fn

    def _at_once(self, index: Any) -> tuple[Any] | None:
        known = self.knowledge
        if not self.is_on:
            known.last = "switched off"
            return None
        try:
            made = (batch_of(self.dataset, index, known),)
        except Unproved as why:
            known.last = str(why)
            return None
        except Exception as error:
            known.last = f"{type(error).__name__}, which is stock's to raise"
            return None
        known.last = None
        known.samples += len(index)
        return made


def why_not(
    dataset: Any, is_map: bool, auto_collation: bool, collate_fn: Any
) -> str | None:
    """Why a loader's batches are stock's to fetch, whatever the dataset's code says."""
    if not is_map or isinstance(dataset, IterableDataset):
        return "an iterable dataset"
    if not auto_collation:
        return "no batches are asked for"
    if collate_fn is not default_collate or _collated != default_collate_fn_map:
        return "a collate function of one's own"
    return None


def batch_of(dataset: Any, index: Any, known: Knowledge) -> Any:
    """The batch of these indices; :class:`Unproved` where stock has to fetch it."""
    if _C.thread_is_disabled() or not _C.thread_is_plain():
        raise Unproved("disabled in this thread, or a mode or transform is active")
    if type(index) is not list or not index:
        raise Unproved("indices that are no list")
    if type(dataset) is not TensorDataset:
        dataset, index = _whole(dataset, index)
    if getattr(dataset, "__getitems__", None):
        raise Unproved("the dataset has a __getitems__ of its own")
    if _getitem(dataset) is _TENSORS:
        return _of_tensors(dataset, index, known)
    run = Interpreter(dataset, index)
    returned = run.run()
    _try_out(dataset, index, known, (*run.signature, *_signatures(returned)))
    return _collated_or_undone(returned) if run.draws else collated(returned)


def is_quiet(dataset: Any) -> bool:
    """Whether fetching runs no code but what is known, and draws no random number."""
    random = torch.get_rng_state()
    try:
        tried = list(range(min(N_TRIED, len(dataset))))
        batch_of(dataset, tried, knowledge_of(dataset))
        return torch.equal(torch.get_rng_state(), random)
    except Exception:
        return False
    finally:
        torch.set_rng_state(random)


def _collated_or_undone(returned: Any) -> Any:
    """The batch; where there is none, no random number has been drawn for it."""
    random = torch.get_rng_state()
    try:
        return collated(returned)
    except BaseException:
        torch.set_rng_state(random)
        raise


def try_out(dataset: Any) -> None:
    """Try a dataset out now, before worker processes that will fetch from it."""
    is_quiet(dataset)


def _getitem(dataset: Any) -> Any:
    return getattr(type(dataset), "__getitem__", None)


def _whole(dataset: Any, index: list[Any]) -> tuple[Any, list[Any]]:
    """The dataset that subsets are of, and the indices there."""
    while _getitem(dataset) is _SUBSET[0] and (
        getattr(type(dataset), "__getitems__", None) is _SUBSET[1]
        and "__getitems__" not in vars(dataset)
    ):
        indices = dataset.indices
        if type(indices) not in (list, tuple, range):
            raise Unproved("a subset whose indices are no list")
        try:
            index = [indices[i] for i in index]
        except (IndexError, TypeError):
            raise Unproved("an index that is no sample") from None
        dataset = dataset.dataset
    return dataset, index


def _of_tensors(dataset: Any, index: list[int], known: Knowledge) -> list[Tensor]:
    tensors = plain_attribute(dataset, "tensors")
    rows = _C.data_rows(tensors, index)
    if rows is None:
        raise Unproved("tensors that are not plain, or an index that is no row")
    if known.stock_ns is None:
        _time_stock(dataset, index[:N_TRIED], known)
    return rows


def collated(value: Any) -> Any:
    """What the default collate function makes of a batch of such values."""
    if isinstance(value, Column):
        return value.collated()
    if not isinstance(value, Group):
        raise Unproved("samples that are no tensors or numbers")
    parts = [collated(part) for part in value.parts]
    return dict(zip(value.keys, parts, strict=True)) if value.kind is dict else parts


def _signatures(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Column):
        return (value.kind, *value.signature)
    return tuple(_signatures(part) for part in getattr(value, "parts", ()))


def _try_out(
    dataset: Any, index: list[int], known: Knowledge, signature: tuple[Any, ...]
) -> None:
    """Fetch a few samples both ways, the first time that this signature is seen."""
    if signature not in known.reasons:
        tried = index[:N_TRIED]
        random = torch.get_rng_state()
        try:
            theirs = _time_stock(dataset, tried, known)
            after = torch.get_rng_state()
            torch.set_rng_state(random)
            ours = collated(Interpreter(dataset, tried).run())
            is_same = is_identical(ours, theirs) and torch.equal(
                torch.get_rng_state(), after
            )
        except Unproved:
            raise
        except Exception as error:
            raise Unproved(f"stock says {type(error).__name__}") from None
        finally:
            torch.set_rng_state(random)
        known.reasons[signature] = None if is_same else "a batch differed from stock's"
    reason = known.reasons[signature]
    if reason:
        raise Unproved(reason)


def _time_stock(dataset: Any, index: list[int], known: Knowledge) -> Any:
    begin = time.perf_counter_ns()
    batch = default_collate([dataset[i] for i in index])
    known.stock_ns = (time.perf_counter_ns() - begin) / len(index)
    return batch


def is_identical(one: Any, other: Any) -> bool:
    """Whether two batches are the same in types, layout and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Tensor):
        same = (one.dtype, one.shape, one.stride()) == (
            other.dtype,
            other.shape,
            other.stride(),
        )
        return same and _bits(one) == _bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            is_identical(one[k], other[k]) for k in one
        )
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_identical, one, other))
    return bool(one == other)


def _bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
