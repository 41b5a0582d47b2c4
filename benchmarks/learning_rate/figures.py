"""Final losses of a method over stock's: of each case, and of all of them.

A ratio is the method's loss divided by stock's, both no less than a floor, so below 1
the method is better; of a case it is the geometric mean over seeds, of many cases the
geometric mean over these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import geometric_mean, mean

from benchmarks import targets
from benchmarks.learning_rate.methods import METHODS, STOCK, Method
from benchmarks.learning_rate.problems import Case
from benchmarks.learning_rate.training import Budget, Outcome, train

FLOOR, COARSE_FLOOR = 1e-4, 1e-2
"""Losses below are as good as these."""

BETTER, WORSE = 0.95, 1.05
"""Ratios beyond which a case counts."""

NINE_RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
BEST_OF_NINE = "stock_best9"

RATIO, COARSE_RATIO = "loss ratio", "loss ratio, floor 0.01"
GAINED = "accuracy gained"
WORST, N_BETTER, N_WORSE = "loss ratio, worst", "cases better", "cases worse"
DIVERGED = "runs diverged"

Outcomes = dict[tuple[str, Case, int], Outcome]
"""By method, case and seed."""


@dataclass(frozen=True)
class Row(targets.Row):
    """One figure; of a case also the numbers that it comes from, means over seeds."""

    coarse: float = math.nan
    """The ratio at the higher floor."""
    stock_loss: float = math.nan
    loss: float = math.nan
    stock_accuracy: float = math.nan
    accuracy: float = math.nan


def row(figure: str, workload: str, variant: str, value: float, unit: str = "") -> Row:
    """Without anything of a case; ratios are against stock."""
    against = STOCK if unit in ("ratio", "points") else ""
    return Row(figure, workload, variant, against, 1, value, unit)


class Bench:
    """Trains what is asked for, and nothing twice."""

    def __init__(
        self,
        budget: Budget,
        train: Callable[..., Outcome] = train,
        after: Callable[[], None] = lambda: None,
    ):
        self.budget = budget
        self._train = train
        self._after = after
        self._known: dict[object, Outcome] = {}

    def outcome(self, method: Method, case: Case, seed: int) -> Outcome:
        """Of one training."""
        key = method.name, *method.key(case), seed
        if key not in self._known:
            self._known[key] = self._train(case, method, seed, self.budget)
            self._after()
        return self._known[key]

    def best_of_nine(self, case: Case, seed: int) -> Outcome:
        """Stock with the rate that turns out to be best for this seed."""
        tried = [
            self.outcome(METHODS[STOCK], replace(case, lr=lr), seed)
            for lr in NINE_RATES
        ]
        return min(tried, key=lambda outcome: outcome.counted)


def ratio(ours: Outcome, stock: Outcome, floor: float = FLOOR) -> float:
    """The one's loss over the other's, both no less than the floor."""
    return max(ours.counted, floor) / max(stock.counted, floor)


def of_cases(
    found: Outcomes, variant: str, cases: Sequence[Case], seeds: Sequence[int]
) -> list[Row]:
    """A row for each case."""
    rows = []
    for case in cases:
        pairs = [(found[variant, case, s], found[STOCK, case, s]) for s in seeds]
        line = row(RATIO, str(case), variant, _mean_ratio(pairs, FLOOR), "ratio")
        rows.append(
            replace(
                line,
                coarse=_mean_ratio(pairs, COARSE_FLOOR),
                stock_loss=_mean_loss(stock for _, stock in pairs),
                loss=_mean_loss(ours for ours, _ in pairs),
                stock_accuracy=mean(stock.accuracy for _, stock in pairs),
                accuracy=mean(ours.accuracy for ours, _ in pairs),
            )
        )
    return rows


Pairs = list[tuple[Outcome, Outcome]]


def _mean_ratio(pairs: Pairs, floor: float) -> float:
    return geometric_mean(ratio(ours, stock, floor) for ours, stock in pairs)


def _mean_loss(outcomes: Iterable[Outcome]) -> float:
    return geometric_mean(max(o.counted, 1e-12) for o in outcomes)


def of_all(
    found: Outcomes, variant: str, cases: Sequence[Case], seeds: Sequence[int]
) -> Iterator[Row]:
    """Rows over all cases, and over those where the user's rate was the best one."""
    lines = dict(zip(cases, of_cases(found, variant, cases, seeds), strict=True))
    ratios = [line.value for line in lines.values()]
    everything = f"{len(cases)} cases"
    yield row(RATIO, everything, variant, geometric_mean(ratios), "ratio")
    coarse = geometric_mean(line.coarse for line in lines.values())
    yield row(COARSE_RATIO, everything, variant, coarse, "ratio")
    yield row(N_BETTER, everything, variant, sum(r < BETTER for r in ratios))
    yield row(N_WORSE, everything, variant, sum(r > WORSE for r in ratios))
    yield row(WORST, everything, variant, max(ratios), "ratio")
    diverged = sum(
        found[variant, case, s].diverged and not found[STOCK, case, s].diverged
        for case in cases
        for s in seeds
    )
    yield row(DIVERGED, everything, variant, diverged)
    yield from _of_tuned(lines, variant)


def _of_tuned(lines: dict[Case, Row], variant: str) -> Iterator[Row]:
    """Rows of each problem and momentum with the best of the rates, by stock."""
    best: dict[tuple[str, float], Row] = {}
    for case, line in lines.items():
        at = case.problem.name, case.momentum
        if at not in best or line.stock_loss < best[at].stock_loss:
            best[at] = line
    tuned = f"{len(best)} with the best rate"
    ratios = [line.value for line in best.values()]
    yield row(RATIO, tuned, variant, geometric_mean(ratios), "ratio")
    yield row(WORST, tuned, variant, max(ratios), "ratio")
    gained = [line.accuracy - line.stock_accuracy for line in best.values()]
    gained = [points for points in gained if not math.isnan(points)]
    if gained:
        yield row(GAINED, tuned, variant, mean(gained), "points")
        yield row(f"{GAINED}, least", tuned, variant, min(gained), "points")
