"""The extension's counters of operators, from where the report was last reset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


@contextmanager
def left_out(c: Any) -> Iterator[None]:
    """Leave what operators count meanwhile, in any thread, out of the report."""
    held = {
        name: (since_reset(c, name), estimates_since_reset(c, name))
        for name, _, _ in c.operators()
    }
    try:
        yield
    finally:
        for name, ((a, f, w, s, t, _), estimated) in held.items():
            a1, f1, w1, s1, t1, _ = c.counters(name)
            reasons = {r: n - w.get(r, 0) for r, n in w1.items()}
            _baseline[name] = a1 - a, f1 - f, reasons, s1 - s, t1 - t
            served, saved, others = c.estimates(name)
            _estimated[name] = (
                *(served - estimated[0], saved - estimated[1]),
                others - estimated[2],
            )
