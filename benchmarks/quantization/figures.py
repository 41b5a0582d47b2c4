"""One case: stock, ours and peers in turn, their numbers against float64, and means.

Ours is timed against stock alone. Peers are first timed briefly, all in turn; the two
fastest whose numbers are usable then stand against ours in a loop of three, because
many methods in turn throw each other's weights out of the cache.
"""

from __future__ import annotations

import copy
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import geometric_mean
from typing import Any

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks import targets
from benchmarks.quantization.cases import Case
from benchmarks.quantization.variants import OURS, Peer, on, quantize
from pai_torchacc.bench import figures
from pai_torchacc.bench.measure import Timing, alternate, median_interval

STOCK, BEST_PEER = "stock", "best peer"
SPEED, SNR, AGREEMENT = "speed", "SQNR", "agreement"
UPPER = "speed, upper end"
"""Of the interval: below 1 a variant is slower, whatever disturbed the machine."""

USABLE_DB = 30.0
"""A peer with noisier outputs is no rival."""

EXACT_DB = 300.0
"""Stands for outputs without noise."""

FINALISTS = 2
ENOUGH = 8
"""Rows of scores from which their agreement says something."""


@dataclass(frozen=True)
class Row(targets.Row):
    """One figure; of a speed also the times, its ratio of medians and Gop/s."""

    of_medians: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """Ends of the 95 % interval of the ratio of medians."""
    rival_ms: float = 0.0
    ms: float = 0.0
    gops: float = 0.0
    rival: str = ""
    """Who the best peer was."""


@dataclass(frozen=True)
class Failure:
    """A variant that cannot do a case."""

    workload: str
    variant: str
    n_threads: int
    error: str

    def __str__(self) -> str:
        where = f"{self.workload}, {self.n_threads} thread(s)"
        return f"{where}, {self.variant}: {self.error}"


@dataclass(frozen=True)
class Setting(figures.Setting):
    """How to measure, how to quantize, beside whom, and a list of what failed."""

    method: str | None = None
    peers: tuple[Peer, ...] = ()
    failed: list[Failure] = field(default_factory=list)

    def fail(self, name: str, variant: str, error: Exception) -> None:
        """Note that a variant cannot do a case."""
        text = str(error).strip().partition("\n")[0]
        what = f"{type(error).__name__}: {text}"
        self.failed.append(Failure(name, variant, self.n_threads, what))


def measure(case: Case, setting: Setting) -> Iterator[Row]:
    """All rows of one case."""
    stock, x = case.build()
    try:
        with torch.no_grad():
            truth = reference(stock, x)
            ours = quantize(copy.deepcopy(stock), setting.method)
            on()
            y = ours(x)
            gate = passes(y, truth, case.floor_db)
            calls: Calls = {
                STOCK: (ptac.disable, partial(stock, x)),
                OURS: (on, partial(ours, x)),
            }
            timings = alternate(calls, setting.blocks, setting.block_s)
            speed = _speed(case, setting, OURS, STOCK, timings, gate)
            yield speed
            yield replace(speed, figure=UPPER, value=speed.high)
            yield from numbers(case.name, OURS, y, truth, setting.n_threads, gate)
            yield from _peers(case, setting, calls, (stock, x, truth), gate)
    finally:
        ptac.disable()


def reference(module: nn.Module, x: Tensor) -> Tensor:
    """What a module gives in float64."""
    ptac.disable()
    exact = copy.deepcopy(module).double()
    return exact(x.double() if x.is_floating_point() else x)


def signal_to_noise_db(y: Tensor, truth: Tensor) -> float:
    """Power of the truth over that of the difference in dB; 0 where there is none."""
    if y.shape != truth.shape:
        return 0.0
    noise = float((y.double() - truth).square().sum())
    if noise == 0:
        return EXACT_DB
    ratio = float(truth.square().sum()) / noise
    return 10 * math.log10(ratio) if 0 < ratio < math.inf else 0.0


def agreement(y: Tensor, truth: Tensor) -> float:
    """Percent of rows whose largest score is the same one."""
    return 100 * float((y.argmax(-1) == truth.argmax(-1)).double().mean())


def passes(y: Tensor, truth: Tensor, floor_db: float) -> bool:
    """Whether outputs are stock's in kind, and near enough."""
    return y.dtype == torch.float32 and signal_to_noise_db(y, truth) >= floor_db


def numbers(
    name: str, variant: str, y: Tensor, truth: Tensor, n_threads: int, gate: bool = True
) -> Iterator[Row]:
    """Rows of how near a variant's outputs are."""
    db = signal_to_noise_db(y, truth)
    yield Row(SNR, name, variant, "", n_threads, db, "dB", gate)
    is_scores = len(truth.shape[1:]) == 1 and len(truth) >= ENOUGH
    if is_scores and y.shape == truth.shape:
        same = agreement(y, truth)
        yield Row(AGREEMENT, name, variant, "", n_threads, same, "%", gate)


def _speed(
    case: Case,
    setting: Setting,
    variant: str,
    rival: str,
    timings: dict[str, Timing],
    gate: bool,
) -> Row:
    slow, fast = timings[rival], timings[variant]
    low, high = median_interval(slow, fast)
    return Row(
        SPEED,
        case.name,
        variant,
        STOCK if rival == STOCK else BEST_PEER,
        setting.n_threads,
        slow.best / fast.best,
        "ratio",
        gate,
        of_medians=slow.median / fast.median,
        low=low,
        high=high,
        rival_ms=slow.best * 1e3,
        ms=fast.best * 1e3,
        gops=case.n_operations / fast.best / 1e9,
        rival=rival,
    )


Calls = dict[str, tuple[Callable[[], Any], Callable[[], Any]]]
"""By variant: what prepares it, and the call."""


def _peers(
    case: Case,
    setting: Setting,
    calls: Calls,
    subject: tuple[nn.Module, Tensor, Tensor],
    gate: bool,
) -> Iterator[Row]:
    stock, x, truth = subject
    theirs: Calls = {}
    usable = set()
    ptac.disable()
    for peer in setting.peers:
        if not peer.is_meant_for(case.part):
            continue
        try:
            module = peer.quantize(copy.deepcopy(stock), x)
            y = module(x)
        except Exception as error:
            setting.fail(case.name, peer.name, error)
            continue
        theirs[peer.name] = ptac.disable, partial(module, x)
        if signal_to_noise_db(y, truth) >= USABLE_DB:
            usable.add(peer.name)
        yield from numbers(case.name, peer.name, y, truth, setting.n_threads)
    if not theirs:
        return
    blocks = max(3, setting.blocks // 4)
    brief = alternate({STOCK: calls[STOCK]} | theirs, blocks, setting.block_s)
    for name in theirs:
        yield _speed(case, setting, name, STOCK, brief, name in usable)
    finalists = sorted(usable, key=lambda name: brief[name].best)[:FINALISTS]
    if finalists:
        loop = {name: theirs[name] for name in finalists} | {OURS: calls[OURS]}
        timings = alternate(loop, setting.blocks, setting.block_s)
        best = min(finalists, key=lambda name: timings[name].best)
        yield _speed(case, setting, OURS, best, timings, gate)


def means(rows: Iterable[Row], cases: Iterable[Case]) -> Iterator[Row]:
    """Geometric means of speeds, the least speed and the least signal-to-noise ratio.

    Only of cases that were all measured.
    """
    members: dict[str, list[str]] = defaultdict(list)
    for case in cases:
        for mean in case.means:
            members[mean].append(case.name)
    measured: dict[tuple[str, str, str, int], dict[str, Row]] = defaultdict(dict)
    for row in rows:
        key = row.figure, row.variant, row.against, row.n_threads
        measured[key][row.workload] = row
    for (figure, *_), at in measured.items():
        for mean, names in members.items():
            if figure in (SPEED, SNR) and at.keys() >= set(names):
                yield from _mean(mean, [at[name] for name in names])


def _mean(name: str, rows: list[Row]) -> Iterator[Row]:
    gate = all(row.passes_gate for row in rows)
    least = min(rows, key=lambda row: row.value)
    yield replace(
        least, figure=f"{least.figure}, least", workload=name, passes_gate=gate
    )
    if least.figure == SPEED:
        yield Row(
            f"{SPEED}, mean",
            name,
            least.variant,
            least.against,
            least.n_threads,
            geometric_mean([row.value for row in rows]),
            "ratio",
            gate,
            of_medians=geometric_mean([row.of_medians for row in rows]),
        )
