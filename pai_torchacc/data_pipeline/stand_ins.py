"""What takes the place of torch's functions while the switch is on.

``_DatasetKind.create_fetcher`` makes our fetcher, also in forked workers;
``_BaseDataLoaderIter.__next__`` measures waiting; the iterator with workers has a ring,
made before the workers are and closed with it.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

from pai_torchacc._ledger import Ledger
from pai_torchacc.data_pipeline import fetching, waiting
from pai_torchacc.data_pipeline.ring import Batch, Ring

_Kind = dataloader._DatasetKind
_Base = dataloader._BaseDataLoaderIter
_Workers = dataloader._MultiProcessingDataLoaderIter

_create_fetcher = _Kind.create_fetcher
_next = _Base.__next__
_init = _Workers.__init__
_is_profiled = torch.autograd._profiler_enabled

_rings: weakref.WeakKeyDictionary[Any, Ring] = weakref.WeakKeyDictionary()
_forking = threading.local()
"""``ring``: of the iterator that starts its workers in this thread, also in them."""

_worker_loop = worker._worker_loop.__code__


def install(ledger: Ledger) -> None:
    """Put all of them in place."""
    ledger.set_attribute(_Kind, "create_fetcher", staticmethod(create_fetcher))
    ledger.set_attribute(_Base, "__next__", next_batch)
    ledger.set_attribute(_Workers, "__init__", begin_workers)


def create_fetcher(
    kind: Any, dataset: Any, auto_collation: Any, collate_fn: Any, drop_last: Any
) -> Any:
    """In place of ``_DatasetKind.create_fetcher``."""
    is_map = kind == _Kind.Map
    if fetching.why_not(dataset, is_map, auto_collation, collate_fn):
        return _create_fetcher(kind, dataset, auto_collation, collate_fn, drop_last)
    # Not where the dataset of a worker has a loader of its own.
    is_of_worker = sys._getframe(1).f_code is _worker_loop
    ring = getattr(_forking, "ring", None) if is_of_worker else None
    return fetching.Fetcher(dataset, auto_collation, collate_fn, drop_last, ring=ring)


def next_batch(self: Any) -> Any:
    """In place of ``_BaseDataLoaderIter.__next__``."""
    fetcher = self.__dict__.get("_dataset_fetcher")
    if type(fetcher) is not fetching.Fetcher:
        clock = waiting.clock_of(self)
        begin = perf_counter_ns()
        batch = _next(self)
        entry = clock.note(begin, perf_counter_ns())
        if clock.why_stock is None:
            clock.why_stock = _why_stock(self)
        if clock.why_stock:
            entry.because(clock.why_stock)
        return batch
    known = fetcher.knowledge
    samples = known.samples
    begin = perf_counter_ns()
    if self._sampler_iter is None or _is_profiled():
        batch = _next(self)
    else:  # as there, without telling a profiler
        batch = self._next_data()
        self._num_yielded += 1
    end = perf_counter_ns()
    clock = fetcher.clock
    if clock is None:
        clock = fetcher.clock = waiting.Clock(self)
    entry = clock.note(begin, end)
    if known.last is None:
        entry.at_once += 1
        entry.fast_ns += end - begin
        entry.stock_ns += (known.samples - samples) * (known.stock_ns or 0.0)
    else:
        entry.because(known.last)
    return batch


def _why_stock(iterator: Any) -> str:
    """Why an iterator has no fetcher of ours and no ring; empty where it has a ring."""
    if iterator in _rings:
        return ""
    is_map = iterator._dataset_kind == _Kind.Map
    reason = fetching.why_not(
        iterator._dataset, is_map, iterator._auto_collation, iterator._collate_fn
    )
    if reason:
        return reason
    if iterator._num_workers:
        return "its workers are not forked, or older than the switch"
    return "its iterator is older than the switch"


def begin_workers(self: Any, loader: Any) -> None:
    """In place of ``_MultiProcessingDataLoaderIter.__init__``."""
    ring = _ring_for(loader)
    if ring is None:
        _init(self, loader)
        return
    _forking.ring = ring
    try:
        _init(self, loader)
    finally:
        _forking.ring = None
    _rings[self] = ring
    self._process_data = _opened_first(self)


def _ring_for(loader: Any) -> Ring | None:
    if not fetching.Fetcher.is_on or not _forks(loader):
        return None
    is_map = loader._dataset_kind == _Kind.Map
    if fetching.why_not(
        loader.dataset, is_map, loader._auto_collation, loader.collate_fn
    ):
        return None
    fetching.try_out(loader.dataset)
    try:
        return Ring(loader.num_workers, (loader.prefetch_factor or 2) + 1)
    except (OSError, ValueError):
        return None


def _forks(loader: Any) -> bool:
    import torch.multiprocessing

    context = loader.multiprocessing_context or torch.multiprocessing
    return context.get_start_method() == "fork"


def _opened_first(iterator: Any) -> Callable[..., Any]:
    """In place of ``iterator._process_data``, for as long as the iterator lives.

    The iterator's workers send through its ring also once the switch is off.
    """
    reference = weakref.ref(iterator)  # else the iterator would not end with its user

    def process_data(data: Any, *rest: Any) -> Any:
        self = reference()
        if type(data) is Batch:
            data = data.open()
            waiting.clock_of(self).entry.through_ring += 1
        return type(self)._process_data(self, data, *rest)

    return process_data
