"""The extension's counters of operators, from where the report was last reset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

Counts = tuple[Any, ...]
"""Calls accelerated, failed, forwarded by reason; ns saved; calls timed; and by the
table, in ns: stock's time for accelerated calls, saved of it, for others."""

_before: dict[str, Counts] = {}


def since_reset(c: Any, name: str) -> Counts:
    """What an operator has counted since its last :func:`discount`."""
    now = _now(c, name)
    return _less(now, _before[name]) if name in _before else now


def _now(c: Any, name: str) -> Counts:
    # Whole nanoseconds: differences of sums are exact.
    return *c.counters(name)[:5], *map(round, c.estimates(name))


def _less(now: Counts, before: Counts) -> Counts:
    """What was added, number by number and reason by reason."""
    return tuple(
        {r: n - b.get(r, 0) for r, n in a.items() if n > b.get(r, 0)}
        if isinstance(a, dict)
        else a - b
        for a, b in zip(now, before, strict=True)
    )


def discount(c: Any, names: Iterable[str]) -> None:
    """Leave what these operators have counted up to now out of the report."""
    for name in names:
        _before[name] = _now(c, name)


@contextmanager
def left_out(c: Any) -> Iterator[None]:
    """Leave what operators count meanwhile, in any thread, out of the report."""
    held = {name: since_reset(c, name) for name, _, _ in c.operators()}
    try:
        yield
    finally:
        for name, counted in held.items():
            _before[name] = _less(_now(c, name), counted)
