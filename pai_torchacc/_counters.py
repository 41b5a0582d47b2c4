"""The extension's counters of operators, from where the report was last reset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_estimated: dict[str, tuple[float, float, float]] = {}
_baseline: dict[str, tuple[int, int, dict[str, int], int, int]] = {}


def since_reset(c: Any, name: str) -> tuple[int, int, dict[str, int], int, int, str]:
    """Calls accelerated, failed, forwarded by reason; ns saved; calls timed; trouble.

    Each counted from the last :func:`discount` of the operator.
    """
    accelerated, failed, forwarded, saved_ns, timed, trouble = c.counters(name)
    if name not in _baseline:
        return accelerated, failed, forwarded, saved_ns, timed, trouble
    a0, f0, w0, s0, t0 = _baseline[name]
    return (
        accelerated - a0,
        failed - f0,
        {r: n - w0.get(r, 0) for r, n in forwarded.items() if n > w0.get(r, 0)},
        saved_ns - s0,
        timed - t0,
        trouble,
    )


def estimates_since_reset(c: Any, name: str) -> tuple[float, float, float]:
    """By the table, in ns: stock's time for accelerated calls, saved, for others."""
    before = _estimated.get(name, (0.0, 0.0, 0.0))
    now = c.estimates(name)
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


def discount(c: Any, names: Iterable[str]) -> None:
    """Leave what these operators have counted up to now out of the report."""
    for name in names:
        _baseline[name] = c.counters(name)[:5]
        _estimated[name] = c.estimates(name)
