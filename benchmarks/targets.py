"""Rows of figures, and which of them fall short of benchmarks/targets.toml.

A target speaks of our variant, or of the ``variant`` it names. ``figure`` and
``workload`` are patterns (``*`` is any); ``against`` (stock, a peer, or ``""`` for the
variant alone) and ``threads`` are to be equal. ``at_least`` or ``at_most`` is the
bound; ``at_most_as`` names a workload whose row is the bound. Where several fit a row,
the last of the file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from rich.console import Console

Target = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One figure. A ratio is the other's value divided by the variant's."""

    figure: str
    workload: str
    variant: str
    against: str
    n_threads: int
    value: float
    unit: str
    passes_gate: bool = True


@dataclass
class Verdict:
    """How the rows compare with the targets."""

    met: int = 0
    missed: list[str] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)


def judge(rows: Sequence[Row], targets: list[Target], ours: str) -> Verdict:
    """Compare; targets that no row is for are named too.

    ``ours`` is the variant that targets speak of where they name none.
    """
    verdict = Verdict()
    seen: set[int] = set()
    for row in rows:
        fitting = [i for i, t in enumerate(targets) if _fits(t, row, ours)]
        seen.update(fitting)
        if not fitting:
            continue
        sign, bound = _bound(targets[fitting[-1]], row, rows)
        met = row.value >= bound if sign == ">=" else row.value <= bound
        if met and row.passes_gate:
            verdict.met += 1
        else:
            verdict.missed.append(_line(row, sign, bound, ours))
    verdict.unmeasured = [describe(t) for i, t in enumerate(targets) if i not in seen]
    return verdict


def _fits(target: Target, row: Row, ours: str) -> bool:
    return (
        row.variant == target.get("variant", ours)
        and row.against == target.get("against", "")
        and fnmatchcase(row.figure, target["figure"])
        and fnmatchcase(row.workload, target.get("workload", "*"))
        and target.get("threads", row.n_threads) == row.n_threads
    )


def _bound(target: Target, row: Row, rows: Sequence[Row]) -> tuple[str, float]:
    if "at_least" in target:
        return ">=", target["at_least"]
    if "at_most" in target:
        return "<=", target["at_most"]
    return "<=", next(_values_of(target["at_most_as"], row, rows), float("inf"))


def _values_of(workload: str, like: Row, rows: Sequence[Row]) -> Iterator[float]:
    for row in rows:
        if row.workload == workload and (
            (row.figure, row.variant, row.against, row.n_threads)
            == (like.figure, like.variant, like.against, like.n_threads)
        ):
            yield row.value


def _line(row: Row, sign: str, bound: float, ours: str) -> str:
    against = f" against {row.against}" if row.against else ""
    of = "" if row.variant == ours else f" of {row.variant}"
    unit = "" if row.unit in ("", "ratio") else f" {row.unit}"
    numbers = "" if row.passes_gate else "; numbers outside the contract"
    return (
        f"missed: {row.workload}, {row.figure}{of}{against}, "
        f"{row.n_threads} thread(s): {row.value:.3g}{unit}, "
        f"target {sign} {bound:.3g}{numbers}"
    )


def describe(target: Target) -> str:
    """Say in one line what a target is about."""
    against, variant = target.get("against", ""), target.get("variant")
    of = f" of {variant}" if variant else ""
    return f"{target.get('workload', '*')}, {target['figure']}{of}" + (
        f" against {against}" if against else ""
    )


def say_verdict(
    screen: Console, verdict: Verdict, more: Iterable[str], is_checked: bool
) -> None:
    """Print what else there is to say, what falls short, and what is met."""
    for line in (
        *more,
        *verdict.missed,
        *(f"not measured: {target}" for target in verdict.unmeasured),
    ):
        screen.print(line, highlight=False, soft_wrap=True)
    if is_checked:
        screen.print(
            f"{verdict.met} targets met, {len(verdict.missed)} missed, "
            f"{len(verdict.unmeasured)} not measured"
        )


def conclude(
    screen: Console,
    rows: Sequence[Row],
    wanted: Sequence[Target] | None,
    ours: str,
    peers: Mapping[str, str | None],
    failed: Iterable[object],
) -> Verdict:
    """Judge the rows and print the verdict; ``wanted`` is None without ``--check``.

    ``peers`` are versions of packages, None of those that are not installed.
    """
    verdict = judge(rows, wanted or [], ours=ours)
    more = (
        *(f"not installed: {name}" for name, found in peers.items() if not found),
        *(f"failed: {failure}" for failure in failed),
    )
    say_verdict(screen, verdict, more, wanted is not None)
    return verdict
