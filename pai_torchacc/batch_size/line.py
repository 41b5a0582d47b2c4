"""Memory as a straight line over the batch size."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

TOLERANCE = 0.1
"""By which share of what a batch needs a prediction may be wrong."""

N_SIZES = 3
"""What a line is fitted to."""

_APART = 1.3
"""By which factor at least its sizes differ."""

_SLACK = 4 << 20
"""Bytes that a prediction may be wrong by whatever the batch size."""


@dataclass(frozen=True)
class MemoryLine:
    """Bytes that a step needs: ``fixed + per_sample * n``.

    Attributes
    ----------
    fixed, per_sample : float
        Bytes.
    sizes : tuple of int
        The three batch sizes that it was fitted to, by least squares.
    """

    fixed: float
    per_sample: float
    sizes: tuple[int, ...]

    def predict(self, n: int) -> int:
        """Bytes for a batch of ``n``."""
        return max(0, round(self.fixed + self.per_sample * n))

    def most(self, limit: int) -> int | None:
        """The largest batch within a limit; None where more samples need no more."""
        if self.per_sample <= 0:
            return None
        return int((limit - self.fixed) / self.per_sample)

    def __str__(self) -> str:
        return (
            f"{self.fixed / 2**20:.1f} MiB + {self.per_sample / 2**20:.4g} MiB x batch"
        )


def fitted(needs: Mapping[int, int]) -> MemoryLine | None:
    """The line through the three largest sizes that lie apart; None without three.

    Between sizes close to each other, what a measurement is off by would tilt it. They
    have to do where there are no others.
    """
    apart: list[int] = []
    for n in sorted(needs, reverse=True):
        if not apart or _APART * n <= apart[-1]:
            apart.append(n)
    sizes = sorted(apart if len(apart) >= N_SIZES else needs, reverse=True)[:N_SIZES]
    if len(sizes) < N_SIZES:
        return None
    sizes.reverse()
    mean_n, mean_need = statistics.mean(sizes), statistics.mean(needs[n] for n in sizes)
    above = sum((n - mean_n) * (needs[n] - mean_need) for n in sizes)
    slope = above / sum((n - mean_n) ** 2 for n in sizes)
    return MemoryLine(mean_need - slope * mean_n, slope, tuple(sizes))


def agrees(predicted: int, measured: int) -> bool:
    """Whether a prediction has come true."""
    return abs(predicted - measured) <= max(_SLACK, TOLERANCE * measured)
