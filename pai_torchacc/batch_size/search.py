"""The search: trials of growing batches, a line for their memory, and the choice."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace

from pai_torchacc.batch_size import line
from pai_torchacc.batch_size.candidates import Candidates
from pai_torchacc.batch_size.result import Trial
from pai_torchacc.batch_size.trial import N_STEPS, WARM_UP
from pai_torchacc.batch_size.watch import Outcome

NEAR_BEST = 0.05
"""By how much less than the best throughput a smaller batch may have."""

_GROWTH, _PATIENCE = 1.03, 2
"""Throughput has stopped growing after so many sizes without such a gain."""

_CLOSE = 1.1
"""Sizes nearer to each other than this are not told apart by memory."""

_MOST_BETWEEN, _MOST_VERIFIED = 6, 3


class Search:
    """Trials by batch size, and what was noticed. ``run`` runs one in a child."""

    def __init__(
        self, run: Callable[[int], Outcome], candidates: Candidates, timeout: float
    ):
        self._run, self._candidates, self._timeout = run, candidates, timeout
        self._axes: set[tuple[int, int]] = set()
        self._n_alike = 0
        self._verified: set[int] = set()
        self._trials: dict[int, Trial] = {}
        self.limit = 0
        self.remarks: list[str] = []

    @property
    def trials(self) -> list[Trial]:
        """By batch size."""
        return [self._trials[n] for n in sorted(self._trials)]

    def memory(self) -> line.MemoryLine | None:
        """The line through the largest batches that fit."""
        return line.fitted({t.batch: t.need_bytes for t in self._fitting()})

    def choose(self) -> Trial:
        """Search; the trial of the batch to use.

        Raises
        ------
        MemoryError
            Not even the smallest batch fits.
        TimeoutError, ValueError, RuntimeError, or what step and make_batch raise
            A trial took too long, a batch has another size than asked for, or a trial
            ended its process.
        """
        ended_at = self._ascend()
        if ended_at is not None:
            self._close_in(ended_at)
        chosen = self._verify()
        self._notice(chosen)
        return chosen

    def _ascend(self) -> int | None:
        """Double until throughput stops growing; the size that did not fit, if any."""
        for n in self._candidates.ascending():
            if self._is_over(n):
                return n
            if self._is_too_slow(n):
                self.remarks.append(f"{n} was not tried: timeout={self._timeout:g}")
                return None
            if self._try(n).trouble:
                return n
            if self._has_stopped_growing():
                return None
        return None

    def _has_stopped_growing(self) -> bool:
        """Whether the last sizes gain nothing, nor when they run once more.

        What else runs on the machine makes a trial slower, and none faster.
        """
        if not self._gains_nothing():
            return False
        for trial in self._fitting()[-_PATIENCE:]:
            self._again(trial.batch)
        return self._gains_nothing()

    def _gains_nothing(self) -> bool:
        rates = [t.throughput for t in self._fitting()]
        before, last = rates[:-_PATIENCE], rates[-_PATIENCE:]
        return bool(before) and max(last) <= _GROWTH * max(before)

    def _is_over(self, n: int) -> bool:
        """Whether a batch is predicted not to fit."""
        known = self.memory()
        return known is not None and known.predict(n) > self.limit

    def _is_too_slow(self, n: int) -> bool:
        if not self._trials:
            return False
        last = self.trials[-1]
        return last.seconds * n / last.batch * N_STEPS > self._timeout

    def _close_in(self, too_large: int) -> None:
        """Find the largest batch that fits: by the line, else by bisection."""
        fits = max(t.batch for t in self._fitting())
        for _ in range(_MOST_BETWEEN):
            known = self.memory()
            guess = known.most(self.limit) if known else None
            if guess is None or not fits <= guess < too_large:
                guess = (fits + too_large) // 2
            n = self._candidates.at_most(guess, fits + 1)
            if n is None or n < _CLOSE * fits or self._is_too_slow(n):
                return
            if self._try(n).trouble:
                too_large = n
            else:
                fits = n

    def _verify(self) -> Trial:
        """Run the chosen batch and the best once more, until both were chosen twice."""
        for _ in range(_MOST_VERIFIED):
            chosen, best = self._nearly_best()
            unsure = {chosen.batch, best.batch} - self._verified
            if not unsure:
                break
            for n in sorted(unsure):
                self._again(n)
        return self._nearly_best()[0]

    def _nearly_best(self) -> tuple[Trial, Trial]:
        """The smallest batch near the best throughput, and the best."""
        best = max(self._fitting(), key=lambda t: t.throughput)
        enough = (1 - NEAR_BEST) * best.throughput
        return next(t for t in self._fitting() if t.throughput >= enough), best

    def _fitting(self) -> list[Trial]:
        return [t for t in self.trials if not t.trouble]

    def _again(self, n: int) -> None:
        if n not in self._verified:
            self._verified.add(n)
            self._try(n)

    def _try(self, n: int) -> Trial:
        """Run a trial; of several of one size the fastest and the largest count."""
        before, known = self._trials.get(n), self.memory()
        found = self._run(n)
        if found.error is not None:
            raise found.error
        self.limit = found.limit or self.limit
        if found.no_memory is None:
            self._check_size(found)
        trial = trial_of(found)
        if before is None:
            predicted = known.predict(n) if known else None
            trial = replace(trial, predicted_bytes=predicted)
        elif not trial.trouble:
            trial = replace(
                trial,
                seconds=min(trial.seconds, before.seconds),
                need_bytes=max(trial.need_bytes, before.need_bytes),
                held_bytes=max(trial.held_bytes, before.held_bytes),
                predicted_bytes=before.predicted_bytes,
            )
        self._trials[n] = trial
        if not self._fitting():
            raise MemoryError(
                f"a batch of {n} does not fit into {self.limit / 2**20:.0f} MiB: "
                f"{trial.trouble}"
            )
        return trial

    def _check_size(self, found: Outcome) -> None:
        """Raise where batches have followed ``n`` up to now, and this one does not."""
        axes = {
            (i, axis)
            for i, shape in enumerate(found.shapes)
            for axis, size in enumerate(shape)
            if size == found.n
        }
        if self._n_alike == 0:
            self._axes = axes
        elif self._n_alike > 1 and self._axes and not self._axes & axes:
            i, axis = min(self._axes)
            n = found.shapes[i][axis] if i < len(found.shapes) else "other"
            raise ValueError(
                f"make_batch({found.n}) gave {n} samples; largest= ends the search "
                "before there are too few"
            )
        self._axes &= axes
        self._n_alike += 1

    def _notice(self, chosen: Trial) -> None:
        wrong = [t for t in self.trials if t.is_unpredicted]
        if wrong:
            self.remarks.append(
                "memory is not a straight line over the batch size: predictions for "
                f"{', '.join(str(t.batch) for t in wrong)} were wrong by over 10 %"
            )
        leaking = max(self._fitting(), key=lambda t: t.leak_bytes)
        if leaking.leak_bytes:
            self.remarks.append(
                f"memory grows by {leaking.leak_bytes / 2**20:.2f} MiB in every step "
                f"of {leaking.batch}: in a long run no batch size is safe"
            )


def trial_of(found: Outcome) -> Trial:
    """What a trial's outcome says of its size."""
    timed = sorted(found.seconds[WARM_UP:])
    faster = timed[: (len(timed) + 1) // 2]
    return Trial(
        batch=found.n,
        seconds=statistics.median(faster) if faster else 0.0,
        n_steps=len(timed),
        need_bytes=max(found.need, 0),  # of few bytes, allocators show none
        predicted_bytes=None,
        held_bytes=found.held,
        leak_bytes=found.leak,
        trouble=found.no_memory,
    )
