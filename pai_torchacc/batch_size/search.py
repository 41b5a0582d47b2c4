"""The search: trials of growing batches, a line for their memory, and the choice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from pai_torchacc.batch_size import line, shapes
from pai_torchacc.batch_size.candidates import NEAR_BEST, Candidates
from pai_torchacc.batch_size.result import Trial
from pai_torchacc.batch_size.trial import N_STEPS
from pai_torchacc.batch_size.watch import Outcome

_GROWTH, _PATIENCE = 1.03, 2
"""Throughput has stopped growing after so many sizes without such a gain."""

_CLOSE = 1.1
"""Sizes nearer to each other than this are not told apart by memory."""

_FAR = 1.3
"""Sizes further from each other than this have another tried between them."""

_MOST_BETWEEN = 6

_SURE, _MOST = 2, 3
"""How many trials a size has that decides; where all were disturbed."""


class Search:
    """Trials by batch size, and what was noticed. ``run`` runs one in a child."""

    def __init__(
        self,
        run: Callable[[int], Outcome],
        candidates: Candidates,
        timeout: float,
        patience_s: float,
    ):
        """``patience_s`` is how long disturbed trials may take before they count."""
        self._run, self._candidates, self._timeout = run, candidates, timeout
        self._patience_s = patience_s
        self._follower = shapes.Follower()
        self._n_tried: Counter[int] = Counter()
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
        self._verify()
        self._refine()
        chosen = self._verify()
        self._notice()
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

        What else runs on the machine makes a trial slower, and none faster. So it takes
        more sizes where trials were disturbed.
        """
        while len(tail := self._beyond_the_best()) >= _PATIENCE:
            if not self._again(t.batch for t in tail[-_PATIENCE:]):
                n_quiet = sum(t.is_quiet for t in tail)
                is_over = self._patience_s <= 0 or len(tail) >= 2 * _PATIENCE
                return n_quiet >= _PATIENCE or is_over
        return False

    def _beyond_the_best(self) -> list[Trial]:
        """Trials of larger batches than the first that is about as good as any."""
        fitting = self._fitting()
        best = max(t.throughput for t in fitting)
        n = [_GROWTH * t.throughput >= best for t in fitting].index(True)
        return fitting[n + 1 :]

    def _is_over(self, n: int) -> bool:
        """Whether a batch is predicted not to fit."""
        known = self.memory()
        return known is not None and known.predict(n) > self.limit

    def _is_too_slow(self, n: int) -> bool:
        """Whether a trial would not end in time, even at the best throughput."""
        best = max((t.throughput for t in self._fitting()), default=0.0)
        return best > 0 and n / best * N_STEPS > self._timeout

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

    def _refine(self) -> None:
        """Try sizes beside the chosen one and the best, where powers of two are far."""
        sizes = [t.batch for t in self._fitting()]
        chosen, best = (sizes.index(t.batch) for t in self._nearly_best())
        for i in sorted({chosen, best, best + 1}):
            if not 0 < i < len(sizes) or sizes[i] < _FAR * sizes[i - 1]:
                continue
            n = self._candidates.between(sizes[i - 1], sizes[i])
            if n is not None and not self._is_too_slow(n):
                self._try(n)

    def _verify(self) -> Trial:
        """Run the chosen batch and the best once more, until both were chosen twice.

        Sizes next below the chosen one as well, where their trials were disturbed.
        """
        while True:
            chosen, best = self._nearly_best()
            below = [t for t in self._fitting() if t.batch < chosen.batch][-_PATIENCE:]
            disturbed = (t.batch for t in below if not t.is_quiet)
            if not self._again({chosen.batch, best.batch, *disturbed}):
                return chosen

    def _nearly_best(self) -> tuple[Trial, Trial]:
        """The smallest batch near the best throughput, and the best."""
        best = max(self._fitting(), key=lambda t: t.throughput)
        enough = (1 - NEAR_BEST) * best.throughput
        return next(t for t in self._fitting() if t.throughput >= enough), best

    def _fitting(self) -> list[Trial]:
        return [t for t in self.trials if not t.trouble]

    def _again(self, sizes: Iterable[int]) -> bool:
        """Run those of these sizes that are not sure yet; whether there were any."""

        def is_sure(n: int) -> bool:
            counts = self._trials[n].is_quiet or self._patience_s <= 0
            return self._n_tried[n] >= (_SURE if counts else _MOST)

        unsure = [n for n in sorted(sizes) if not is_sure(n)]
        for n in unsure:
            self._try(n)
        return bool(unsure)

    def _try(self, n: int) -> Trial:
        """Run a trial; of several of one size the fastest and the largest count."""
        before, known = self._trials.get(n), self.memory()
        start = time.monotonic()
        found = self._run(n)
        if not found.is_quiet:
            self._patience_s -= time.monotonic() - start
        if found.error is not None:
            raise found.error
        self.limit = found.limit or self.limit
        if found.no_memory is None:
            self._follower.check(n, found.shapes)
        self._n_tried[n] += 1
        trial = trial_of(found)
        if before is None:
            is_ahead = known and n > known.sizes[-1]
            predicted = known.predict(n) if known and is_ahead else None
            trial = replace(trial, predicted_bytes=predicted)
        elif not trial.trouble:
            trial = merged(before, trial)
        self._trials[n] = trial
        if not self._fitting():
            raise MemoryError(
                f"a batch of {n} does not fit into {self.limit / 2**20:.0f} MiB: "
                f"{trial.trouble}"
            )
        return trial

    def _notice(self) -> None:
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
        disturbed = [t for t in self._fitting() if not t.is_quiet]
        if disturbed:
            self.remarks.append(
                "threads waited for CPUs that others used: throughput with "
                f"{', '.join(str(t.batch) for t in disturbed)} may be higher"
            )


def merged(before: Trial, trial: Trial) -> Trial:
    """Of two trials of one size: the faster undisturbed one, and the most memory."""
    faster = min(before, trial, key=lambda t: (not t.is_quiet, t.seconds))
    return replace(
        faster,
        need_bytes=max(trial.need_bytes, before.need_bytes),
        held_bytes=max(trial.held_bytes, before.held_bytes),
        leak_bytes=trial.leak_bytes,
        predicted_bytes=before.predicted_bytes,
    )


def trial_of(found: Outcome) -> Trial:
    """What a trial's outcome says of its size."""
    return Trial(
        batch=found.n,
        seconds=found.seconds,
        n_steps=found.n_steps,
        is_quiet=found.is_quiet,
        need_bytes=max(found.need, 0),  # of few bytes, allocators show none
        predicted_bytes=None,
        held_bytes=found.held,
        leak_bytes=found.leak,
        trouble=found.no_memory,
    )
