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
from torch.utils.data._utils import collate
from torch.utils.data._utils.collate import default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from pai_torchacc import _C
from pai_torchacc.data_pipeline.interpreting import (
    Interpreter,
    class_attribute,
    plain_attribute,
)
from pai_torchacc.data_pipeline.plan import Plan
from pai_torchacc.data_pipeline.ring import (
    Ring,
    Slot,
    collated_into,
    slot_of_this_worker,
)
from pai_torchacc.data_pipeline.values import Column, Group, Known, Unproved
from pai_torchacc.data_pipeline.waiting import Clock
from pai_torchacc.fusion.foreign import is_torchs_own

N_TRIED = 8
"""Samples that are fetched both ways."""

_FEWEST = 16
"""Below so many samples, following the code takes longer than running it."""

_LONGEST_PAUSE = 31

_TORCHS = (
    (TensorDataset, "__getitem__"),
    *((Subset, "__getitem__"), (Subset, "__getitems__")),
    *((collate, "default_collate"), (collate, "collate")),
    (_MapDatasetFetcher, "fetch"),
)
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
    has_images : bool or None
        Whether samples are transformed images, where that is known.
    pause, paused : int
        For how many batches nothing is tried after a refusal, and how many of them are
        left: what stock had to fetch once, it mostly has to again.
    """

    reasons: dict[Any, str | None] = field(default_factory=dict)
    last: str | None = None
    stock_ns: float | None = None
    samples: int = 0
    has_images: bool | None = None
    pause: int = 0
    paused: int = 0


class NotThisBatch(Unproved):
    """Nothing speaks against the dataset; the next batch is tried."""


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
        self._plans: list[Plan] = []
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
        if known.paused:
            known.paused -= 1
            return None
        try:
            made = (batch_of(self.dataset, index, known, self._plans),)
        except NotThisBatch as why:
            known.last = str(why)
            return None
        except Unproved as why:
            known.last = str(why)
        except Exception as error:
            known.last = f"{type(error).__name__}, which is stock's to raise"
        else:
            known.last, known.pause = None, 0
            known.samples += len(index)
            return made
        self._plans.clear()
        known.paused = known.pause = min(2 * known.pause + 1, _LONGEST_PAUSE)
        return None


def why_not(
    dataset: Any, is_map: bool, auto_collation: bool, collate_fn: Any
) -> str | None:
    """Why a loader's batches are stock's to fetch, whatever the dataset's code says."""
    if not is_map or isinstance(dataset, IterableDataset):
        return "an iterable dataset"
    if not auto_collation:
        return "no batches are asked for"
    if collate_fn is not default_collate:
        return "a collate function of one's own"
    return changed_by_others()


def changed_by_others() -> str | None:
    """What of torch's loading is not torch's any more; None where all of it is."""
    for owner, name in _TORCHS:
        if not is_torchs_own(owner, name):
            return f"{owner.__name__}.{name} was changed by others"
    functions = collate.default_collate_fn_map.values()
    if any(f.__module__ != collate.__name__ for f in functions):
        return "the default collate functions were changed by others"
    return None


def batch_of(dataset: Any, index: Any, known: Knowledge, plans: list[Plan]) -> Any:
    """The batch of these indices; :class:`Unproved` where stock has to fetch it.

    ``plans`` has the iterator's plan, if there is one, and gets a better one.
    """
    if _C.thread_is_disabled() or not _C.thread_is_plain():
        raise NotThisBatch("disabled in this thread, or a mode or transform is active")
    if type(index) is not list or not index:
        raise Unproved("indices that are no list")
    if type(dataset) is not TensorDataset:
        dataset, index = _whole(dataset, index)
    elif _has_own_tensors(dataset):  # the usual case, on a short way
        return _of_tensors(dataset.tensors, index, dataset, known)
    if plans and set(map(type, index)) == {int} and plans[0].holds(dataset):
        return plans[0].batch(index)
    plans.clear()
    if "__getitems__" in vars(dataset) or class_attribute(
        type(dataset), "__getitems__"
    ):
        raise Unproved("the dataset has a __getitems__ of its own")
    if _getitem(dataset) is _TENSORS:
        tensors = plain_attribute(dataset, "tensors")
        return _of_tensors(tensors, index, dataset, known)
    if set(map(type, index)) != {int}:
        raise Unproved("indices that are no integers")
    if len(index) < _FEWEST and known.has_images is False:
        raise NotThisBatch("few samples in a batch")
    run = Interpreter(dataset, index)
    returned = run.run()
    known.has_images = run.has_images
    if len(index) < _FEWEST and not run.has_images:
        raise NotThisBatch("few samples in a batch")
    _try_out(dataset, index, known, (*run.signature, *_signatures(returned)))
    batch = _finished(run, returned)
    if run.is_repeatable and not run.has_images:
        plans.append(Plan(dataset, run, returned, collated))
    return batch


def try_out(dataset: Any) -> None:
    """Try a dataset out now, before worker processes that will fetch from it."""
    random = torch.get_rng_state()
    try:
        index = list(range(min(_FEWEST, len(dataset))))
        batch_of(dataset, index, knowledge_of(dataset), [])
    except Exception:
        return  # the workers' first batches will show the same
    finally:
        torch.set_rng_state(random)


def _finished(run: Interpreter, returned: Any) -> Any:
    """The batch; where there is none, no random number has been drawn for it."""
    n = len(run.samples.index)
    if run.drawn is None:
        return collated(returned, n)
    random = torch.get_rng_state()
    try:
        run.drawn.data()  # once, also where the sample's code drops it
        return collated(returned, n)
    except BaseException:
        torch.set_rng_state(random)
        raise


def _getitem(dataset: Any) -> Any:
    return getattr(type(dataset), "__getitem__", None)


def _whole(dataset: Any, index: list[Any]) -> tuple[Any, list[Any]]:
    """The dataset that subsets are of, and the indices there."""
    while _getitem(dataset) is _SUBSET[0] and (
        getattr(type(dataset), "__getitems__", None) is _SUBSET[1]
        and "__getitems__" not in vars(dataset)
    ):
        indices = plain_attribute(dataset, "indices")
        if type(indices) not in (list, tuple, range):
            raise Unproved("a subset whose indices are no list")
        try:
            index = [indices[i] for i in index]
        except (IndexError, TypeError):
            raise Unproved("an index that is no sample") from None
        dataset = plain_attribute(dataset, "dataset")
    return dataset, index


def _has_own_tensors(dataset: Any) -> bool:
    """Whether a TensorDataset and its class have nothing that torch's do not have."""
    cls, own = TensorDataset, dataset.__dict__
    return (
        len(own) == 1
        and "tensors" in own
        and cls.__getitem__ is _TENSORS
        and cls.__getattribute__ is object.__getattribute__
        and not hasattr(cls, "tensors")
        and not hasattr(cls, "__getitems__")
    )


def _of_tensors(
    tensors: Any, index: list[int], dataset: Any, known: Knowledge
) -> list[Tensor]:
    rows = _C.data_rows(tensors, index)
    if rows is None:
        raise Unproved("tensors that are not plain, or an index that is no row")
    if known.stock_ns is None:
        _time_stock(dataset, index[:N_TRIED], known)
    return rows


def collated(value: Any, n: int, given: set[int] | None = None) -> Any:
    """What the default collate function makes of a batch of n such values."""
    given = set() if given is None else given
    if isinstance(value, Column):
        return value.collated(given)
    if isinstance(value, Known) and type(value.value) in (int, float, bool):
        return default_collate([value.value] * n)
    if not isinstance(value, Group):
        raise Unproved("samples that are no tensors or numbers")
    parts = [collated(part, n, given) for part in value.parts]
    return dict(zip(value.keys, parts, strict=True)) if value.kind is dict else parts


def _signatures(value: Any) -> tuple[Any, ...]:
    if isinstance(value, Column):
        return (value.kind, *value.signature)
    if isinstance(value, Known):
        return (type(value.value),)
    return tuple(_signatures(part) for part in getattr(value, "parts", ()))


def _try_out(
    dataset: Any, index: list[int], known: Knowledge, signature: tuple[Any, ...]
) -> None:
    """Fetch a few samples both ways, the first time that this signature is seen."""
    if signature not in known.reasons:
        tried = (index * 2 if len(index) == 1 else index)[:N_TRIED]
        random = torch.get_rng_state()
        try:
            run = Interpreter(dataset, tried)
            ours = _finished(run, run.run())
            after = torch.get_rng_state()
            torch.set_rng_state(random)
            theirs = _time_stock(dataset, tried, known)
            is_same = is_identical(ours, theirs) and torch.equal(
                torch.get_rng_state(), after
            )
            known.reasons[signature] = (
                None if is_same else "a batch differed from stock's"
            )
        except Unproved as why:
            known.reasons[signature] = str(why)
        except Exception as error:
            raise Unproved(
                f"{type(error).__name__}, which is stock's to raise"
            ) from None
        finally:
            torch.set_rng_state(random)
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
