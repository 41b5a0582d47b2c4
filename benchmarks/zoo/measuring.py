"""One model beside stock: how fast, and which operator makes it slow."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pai_torchacc as ptac
from benchmarks.zoo.model import MODELS
from pai_torchacc.bench.measure import (
    Call,
    Timing,
    Variants,
    release_memory,
    repetitions,
    seconds_of,
    take_turns,
)

SLOWER = 0.98
"""A ratio below this is a defect, if it stays there when measured again."""

ATTEMPTS = 3

STOCK, OURS = "stock", "ptac"

LONG_S = 0.3
"""A call that takes longer warms itself up."""

FEWEST = 6
"""Blocks of calls that are long, of one call each."""

BUDGET_S = 8.0
"""What a row may take where calls are not long, about."""


@dataclass(frozen=True)
class Setting:
    """Under which circumstances a model is measured."""

    model: str
    way: str
    level: str
    n_threads: int
    most_blocks: int = 20
    block_s: float = 0.05

    @property
    def group(self) -> str:
        """The model's."""
        return MODELS[self.model].group

    def build(self) -> Call:
        """A model of its own, and a call of it."""
        model = MODELS[self.model]
        return model.infer() if self.way == "inference" else model.train()

    def blocks(self, seconds: float) -> int:
        """How many, where two variants' calls take so long."""
        turn_s = 4 * max(seconds, self.block_s / 2)
        return min(self.most_blocks, max(FEWEST, int(BUDGET_S / turn_s)))

    def __str__(self) -> str:
        return f"{self.model}, {self.way}, {self.level}, {self.n_threads} thread(s)"


@dataclass(frozen=True)
class Row:
    """One model in inference or training; ``ratio`` is stock's time over ours."""

    model: str
    group: str
    way: str
    level: str
    n_threads: int
    ratio: float
    of_medians: float
    stock_us: float
    our_us: float


@dataclass(frozen=True)
class Blame:
    """The operator without which a model is fastest, and the ratio without it.

    ``operator`` is empty where the model used none.
    """

    operator: str
    ratio: float

    @property
    def is_found(self) -> bool:
        """Whether the model is not slow without it."""
        return self.ratio >= SLOWER


class FailedError(Exception):
    """A model does not build or run; ``in_stock`` where that is not our doing."""

    def __init__(self, in_stock: bool, why: str) -> None:
        super().__init__(why)
        self.in_stock = in_stock


def settled(setting: Setting) -> Row:
    """A row that is not slow by an accident of one measurement."""
    rows: list[Row] = []
    while len(rows) < ATTEMPTS:
        rows.append(_measure(setting))
        if rows[-1].ratio >= SLOWER:
            break
    return max(rows, key=lambda row: row.ratio)


def blame(setting: Setting) -> Blame:
    """Exclude each operator that the model uses; the best is measured once more."""
    with _sides(setting) as sides:
        stock, ours = setting.build(), setting.build()
        seconds = sides.try_both(stock, ours)[STOCK]
        operators = _operators_of(ours)
        if not operators:
            return Blame("", 0.0)
        short = replace(setting, most_blocks=max(1, setting.blocks(seconds) // 2))
        timings = sides.take_turns(short, stock, ours, operators)
        best = min(operators, key=lambda op: timings[op].best)
        timings = sides.take_turns(setting, stock, ours, [best])
        return Blame(best, timings[STOCK].best / timings[best].best)


def _measure(setting: Setting) -> Row:
    with _sides(setting) as sides:
        stock, ours = setting.build(), setting.build()
        sides.try_both(stock, ours)
        timings = sides.take_turns(setting, stock, ours)
    return Row(
        *(setting.model, setting.group, setting.way, setting.level, setting.n_threads),
        timings[STOCK].best / timings[OURS].best,
        timings[STOCK].median / timings[OURS].median,
        timings[STOCK].best * 1e6,
        timings[OURS].best * 1e6,
    )


class _Sides:
    """Switches between stock and ours, and knows whose turn it is."""

    def __init__(self, level: str) -> None:
        self.is_stock = True
        self._level = level
        self._seconds: dict[str, float] = {}

    def to_stock(self) -> None:
        self.is_stock = True
        ptac.disable()

    def to_ours(self, without: str | None = None) -> None:
        self.is_stock = False
        ptac.enable(numerics=self._level, exclude=[without] if without else None)

    def try_both(self, stock: Call, ours: Call) -> dict[str, float]:
        """Run both for the first time; what a call of each takes. Ours is left on."""
        for name, prepare, call in (
            (STOCK, self.to_stock, stock),
            (OURS, self.to_ours, ours),
        ):
            prepare()
            self._seconds[name] = seconds_of(call)
        return self._seconds

    def take_turns(
        self,
        setting: Setting,
        stock: Call,
        ours: Call,
        operators: list[str] | None = None,
    ) -> dict[str, Timing]:
        """Stock and ours in turn, or instead of ours all but one of the operators."""
        variants: Variants = {STOCK: (self.to_stock, stock)}
        if operators is None:
            variants[OURS] = (self.to_ours, ours)
        for op in operators or ():
            variants[op] = (self._without(op), ours)
        seconds = {n: self._seconds[STOCK if n == STOCK else OURS] for n in variants}
        slowest = max(seconds.values())
        counts = {n: repetitions(s, setting.block_s) for n, s in seconds.items()}
        blocks = setting.blocks(slowest)
        return take_turns(variants, counts, blocks, warms_up=slowest < LONG_S)

    def _without(self, operator: str) -> Callable[[], None]:
        return lambda: self.to_ours(without=operator)


@contextmanager
def _sides(setting: Setting) -> Iterator[_Sides]:
    """Stock before and after; errors within are told by whose turn it was."""
    release_memory()  # that of the model before
    sides = _Sides(setting.level)
    sides.to_stock()
    try:
        yield sides
    except Exception as error:
        [line, *_] = [*str(error).splitlines(), ""]
        why = f"{type(error).__name__}: {line}"
        raise FailedError(sides.is_stock, why) from None
    finally:
        ptac.disable()


def _operators_of(call: Call) -> list[str]:
    """Operators of ours that one call uses, accelerated or not."""
    before = _calls()
    call()
    return [op for op, n in _calls().items() if n > before[op]]


def _calls() -> dict[str, int]:
    ops: dict[str, dict[str, Any]] = json.loads(ptac.report(format="json"))["ops"]
    return {op: entry["calls"] for op, entry in ops.items()}
