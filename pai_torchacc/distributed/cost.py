"""What collectives cost by a model of two numbers, and what follows for many ranks.

An all-reduce of n bytes takes alpha + beta * n seconds (R. W. Hockney, "The
communication challenge for MPP", 1994). In a ring of p ranks it is 2 (p - 1) messages
one after the other, each of n / p bytes (Patarasuk and Yuan, 2009), so both numbers
follow from those of one message.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MIB = 1 << 20

_LEAST_BUCKET = 4 * MIB
_MOST_BUCKET = 25 * MIB


@dataclass(frozen=True)
class Line:
    """Seconds that something of n bytes takes: ``alpha + beta * n``."""

    alpha_s: float
    beta_s_per_byte: float

    def seconds(self, n_bytes: float) -> float:
        """Predict the time for so many bytes."""
        return self.alpha_s + self.beta_s_per_byte * n_bytes

    @classmethod
    def fit(cls, points: Iterable[tuple[int, float]]) -> Line:
        """The line through ``(bytes, seconds)`` of least squares of relative errors.

        Neither number is negative: where the best line has one that is, it is 0.

        Raises
        ------
        ValueError
            Fewer than two sizes, or a time that is not positive.
        """
        found = list(points)
        if len({n for n, _ in found}) < 2 or any(t <= 0 for _, t in found):  # noqa: PLR2004
            raise ValueError(f"a line needs two sizes and positive times, not {found}")
        # Divided by t, every point asks for alpha / t + beta n / t = 1.
        aa = sum(1 / t**2 for _, t in found)
        ab = sum(n / t**2 for n, t in found)
        bb = sum((n / t) ** 2 for n, t in found)
        a, b = sum(1 / t for _, t in found), sum(n / t for n, t in found)
        det = aa * bb - ab * ab
        alpha, beta = (a * bb - b * ab) / det, (b * aa - a * ab) / det
        if alpha < 0:
            return cls(0.0, b / bb)
        return cls(alpha, beta) if beta >= 0 else cls(a / aa, 0.0)

    def error(self, n_bytes: int, seconds: float) -> float:
        """How far the prediction is from a measured time, as a share of it."""
        return abs(self.seconds(n_bytes) - seconds) / seconds


@dataclass(frozen=True)
class Ring:
    """A link between neighbours in a ring, by what one message takes."""

    message: Line

    @classmethod
    def of(cls, allreduce: Line, n_ranks: int) -> Ring:
        """The link that an all-reduce among so many ranks was measured on."""
        n_messages = 2 * (n_ranks - 1)
        return cls(
            Line(
                allreduce.alpha_s / n_messages,
                allreduce.beta_s_per_byte * n_ranks / n_messages,
            )
        )

    def allreduce(self, n_ranks: int) -> Line:
        """What an all-reduce among so many ranks takes; nothing for one."""
        n_messages = 2 * (n_ranks - 1)
        return Line(
            self.message.alpha_s * n_messages,
            self.message.beta_s_per_byte * n_messages / n_ranks,
        )


@dataclass(frozen=True)
class Step:
    """A step of data parallel training, per rank: its computing and its gradients."""

    compute_s: float
    gradient_bytes: int

    def seconds(self, ring: Ring, n_ranks: int, overlap: float = 0.0) -> float:
        """Predict its time among so many ranks that all do as much as one alone.

        ``overlap`` is the share of the computing behind which communication may hide.
        """
        sending = ring.allreduce(n_ranks).seconds(self.gradient_bytes)
        if n_ranks == 1:
            sending = 0.0
        return self.compute_s + max(0.0, sending - overlap * self.compute_s)

    def efficiency(self, ring: Ring, n_ranks: int, overlap: float = 0.0) -> float:
        """Samples a second by so many ranks, as a share of so many times one's."""
        return self.compute_s / self.seconds(ring, n_ranks, overlap)


def bucket_bytes(allreduce: Line, gradient_bytes: int) -> int | None:
    """The bucket size that loses least; None: DDP's own does as well.

    Buckets of c bytes cost alpha each, and the last one's c * beta seconds have no
    computing to hide behind: alpha B / c + beta c is least at c = sqrt(alpha B / beta).
    Below 4 MiB nothing more was gained when it was measured, and DDP's own 25 MiB are
    the most.
    """
    if allreduce.beta_s_per_byte == 0 or gradient_bytes < 2 * _LEAST_BUCKET:
        return None
    best = math.sqrt(allreduce.alpha_s * gradient_bytes / allreduce.beta_s_per_byte)
    return max(int(best), _LEAST_BUCKET) if best < _MOST_BUCKET else None


def bubble(n_stages: int, n_microbatches: int) -> float:
    """The share of time that stages of a pipeline wait: (p - 1) / (m + p - 1).

    Of p equal stages and m micro-batches, all forward and then all backward (GPipe,
    Huang et al., 2019), or one forward and one backward in turn.
    """
    return (n_stages - 1) / (n_microbatches + n_stages - 1)


def ideal_devices(time_saved: float) -> int:
    """How many devices that lose nothing save this share of the time.

    Raises
    ------
    ValueError
        The share is not between 0 and 1; nothing saves all of it.
    """
    if not 0 <= time_saved < 1:
        raise ValueError(f"time_saved={time_saved}; it is 0 or more, and less than 1")
    # A rounding error of the division is no device.
    return math.ceil(1 / (1 - time_saved) - 1e-9)


def median_error(line: Line, points: Sequence[tuple[int, float]]) -> float:
    """The median of the line's errors at these points."""
    errors = sorted(line.error(*point) for point in points)
    return errors[len(errors) // 2]
