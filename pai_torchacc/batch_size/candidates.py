"""Batch sizes that may be tried."""

from __future__ import annotations

import math
from collections.abc import Iterator

NEAR_BEST = 0.05
"""By how much less than the best throughput the chosen size may have."""

_FINE = 8
"""Large sizes are multiples of it."""


class Candidates:
    """Sizes from ``smallest`` to ``largest``; of a whole ``keep``, its divisors only.

    Raises
    ------
    ValueError
        There is none.
    """

    def __init__(self, smallest: int, largest: int, keep: int | None):
        self._smallest, self._largest = smallest, largest
        self._divisors = None if keep is None else _divisors(keep)
        if self._next(smallest - 1) is None:
            some = f" among the divisors of {keep}: {self._divisors}" if keep else ""
            raise ValueError(f"no batch size is from {smallest} to {largest}{some}")

    def ascending(self) -> Iterator[int]:
        """Each at most twice the one before where that can be, up to the largest."""
        n = self._next(self._smallest - 1)
        while n is not None:
            yield n
            n = self.at_most(2 * n, n + 1) or self._next(n)

    def between(self, lower: int, upper: int) -> int | None:
        """A size between two others, as far from both as can be by ratio."""
        n = self.at_most(math.isqrt(lower * upper), lower + 1)
        if n is None:
            n = self._next(lower)
        return n if n is not None and n < upper else None

    def at_most(self, n: int, least: int) -> int | None:
        """The largest size from ``least`` to ``n``."""
        n = min(n, self._largest)
        if self._divisors is not None:
            return max((d for d in self._divisors if least <= d <= n), default=None)
        if n >= _FINE * _FINE and n != self._largest:
            n = max(n - n % _FINE, least)
        return n if n >= least else None

    def _next(self, n: int) -> int | None:
        """The smallest size above ``n``."""
        if self._divisors is not None:
            above = (d for d in self._divisors if n < d <= self._largest)
            return next(above, None)
        return n + 1 if n < self._largest else None


def _divisors(number: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
