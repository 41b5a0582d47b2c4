"""How long a program waits for data, by loader.

Between two batches a program computes; while it is in ``next()`` it waits. The share of
waiting, with stock's time for fetching in place of ours, is what it was before.
"""

from __future__ import annotations

import weakref
from dataclasses import asdict, dataclass, field
from typing import Any

_MOST_LOADERS = 64


@dataclass
class Waiting:
    """The loaders of one kind of dataset, with as many workers.

    Times are in nanoseconds; ``stock_ns`` is what stock would have taken to fetch the
    batches that were fetched at once, by a few samples that were timed.
    """

    dataset: str
    workers: int
    batches: int = 0
    at_once: int = 0
    through_ring: int = 0
    waited_ns: int = 0
    computed_ns: int = 0
    stock_ns: float = 0.0
    fast_ns: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def stall(self) -> float | None:
        """The share of the time that the program waits."""
        return _share(self.waited_ns, self.computed_ns)

    def stall_before(self) -> float | None:
        """The same with stock's fetching, where it was timed."""
        if self.workers or not self.at_once:
            return None if self.at_once or self.through_ring else self.stall()
        waited = self.waited_ns - self.fast_ns + self.stock_ns
        return _share(waited, self.computed_ns)

    def because(self, reason: str) -> None:
        """A batch was stock's for this reason."""
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def document(self) -> dict[str, Any]:
        """For the report."""
        entry = asdict(self)
        for name in ("waited_ns", "computed_ns", "stock_ns", "fast_ns"):
            del entry[name]
        entry["waited_ms"] = self.waited_ns / 1e6
        entry["stall"] = self.stall()
        entry["stall_before"] = self.stall_before()
        return entry


def _share(waited: float, computed: float) -> float | None:
    total = waited + computed
    return waited / total if total else None


_found: dict[tuple[str, int], Waiting] = {}
_clocks: weakref.WeakKeyDictionary[Any, Clock] = weakref.WeakKeyDictionary()
_epoch: list[int] = [0]
"""Counts resets, after which clocks look for their entries anew."""


class Clock:
    """What an iterator's batches count for, and when the last one came.

    ``why_stock`` is why they all are stock's: empty where they are not, None where that
    is not known yet.
    """

    __slots__ = ("_epoch", "_key", "_last_ns", "entry", "why_stock")

    def __init__(self, iterator: Any):
        self.why_stock: str | None = None
        self._key = _name_of(iterator._dataset), iterator._num_workers
        self._look_up()

    def _look_up(self) -> None:
        key = self._key
        if key not in _found and len(_found) >= _MOST_LOADERS:
            key = "others", key[1]
        self.entry = _found.setdefault(key, Waiting(*key))
        self._last_ns = 0
        self._epoch = _epoch[0]

    def note(self, begin_ns: int, end_ns: int) -> Waiting:
        """A batch was asked for and came."""
        if self._epoch != _epoch[0]:
            self._look_up()
        entry = self.entry
        entry.batches += 1
        entry.waited_ns += end_ns - begin_ns
        if self._last_ns:
            entry.computed_ns += begin_ns - self._last_ns
        self._last_ns = end_ns
        return entry


def _name_of(dataset: Any) -> str:
    """The class of a dataset, or of what a subset is of."""
    from torch.utils.data import Subset

    while type(dataset) is Subset:
        dataset = dataset.dataset
    return type(dataset).__name__


def clock_of(iterator: Any) -> Clock:
    """An iterator's clock."""
    found = _clocks.get(iterator)
    if found is None:
        found = _clocks[iterator] = Clock(iterator)
    return found


def loaders() -> list[Waiting]:
    """All entries that have had a batch."""
    return [entry for entry in _found.values() if entry.batches]


def reset() -> None:
    """Begin counting anew."""
    _found.clear()
    _epoch[0] += 1
