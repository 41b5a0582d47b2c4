"""The command: what ranks gain here and on a link, the model, what it predicts."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.distributed import link, models, ranks, scripts, simulated
from benchmarks.screen import new_table, show
from benchmarks.targets import Row
from pai_torchacc.bench.measure import environment
from pai_torchacc.bench.run import console, write_csv
from pai_torchacc.commands.usage import check_outputs
from pai_torchacc.distributed import cores
from pai_torchacc.distributed.cost import Line, Ring

MBIT, SLOW_MBIT = 1000, 200
"""The link of the figures; one that is the bottleneck for four ranks on two cores."""

FITTED = [16 << 10, 256 << 10, 2 << 20, 16 << 20]
HELD_BACK = [64 << 10, 1 << 20, 4 << 20, 8 << 20]


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure the parts that the options name; the document and the exit status."""
    screen = console()
    check_outputs([options.csv])
    measure: dict[str, Callable[[int], Iterator[Row]]] = {
        "script": _script,
        "steps": _steps,
        "divided": _divided,
        "link": _link,
        "fsdp": _fsdp,
        "watch": _watch,
        "model": _model,
        "simulated": _simulated,
    }
    rows: list[Row] = []
    for part in options.parts or measure:
        if reason := link.why_not() if part == "link" else None:
            screen.print(f"{part} is left out: {reason}")
            continue
        rows += measure[part](3 if options.quick else 8)
    _show(screen, rows)
    if options.csv and rows:
        write_csv(Path(options.csv), rows, {})
    return {"environment": environment(), "rows": [asdict(row) for row in rows]}, 0


def _ratios(figure: str, workload: str, times: dict[str, list[float]]) -> Iterator[Row]:
    """Least and median of stock by those of each other variant."""
    stock = times["stock"]
    yield Row(f"{figure}, median", workload, "stock", "", 1, _median(stock), "ms")
    for variant, found in times.items():
        if variant != "stock":
            least, median = min(stock) / min(found), _median(stock) / _median(found)
            yield Row(figure, workload, variant, "stock", 1, least, "ratio")
            yield Row(
                f"{figure}, of medians", workload, variant, "stock", 1, median, "ratio"
            )


def _median(times: list[float]) -> float:
    return statistics.median(times)


def _script(blocks: int) -> Iterator[Row]:
    """The example, unedited, in fresh processes by torchrun and by launch in turn."""
    times = scripts.epochs(n_ranks=2, rounds=max(3, blocks // 2))
    yield from _ratios("epoch", "examples/distributed.py, 2 ranks", times)


def _steps(blocks: int) -> Iterator[Row]:
    variants = ["stock", "stock bound", "none", "ours", "ours bound", "ours none"]
    options: dict[str, Any] = {"steps": 8, "blocks": blocks, "variants": variants}
    for model, batch in (("cnn", 32), ("mlp", 64)):
        times = ranks.run("train", 2, model=model, batch=batch, **options)
        yield from _ratios("step", f"{model}, 2 ranks, 2 cores", times)


def _divided(blocks: int) -> Iterator[Row]:
    """Two ranks of a thread each beside one process of two threads, and by hand."""
    for model in models.WHOLE:
        times = ranks.run("divided", 2, model=model, steps=4, blocks=blocks)
        workload = f"DataParallel, {model}, 2 ranks"
        yield from _ratios("step", workload, times)
        hand, ours = times["DDP"], times["ours"]
        ratios = min(hand) / min(ours), _median(hand) / _median(ours)
        for figure, ratio in zip(("step", "step, of medians"), ratios, strict=True):
            yield Row(figure, workload, "ours", "DDP", 1, ratio, "ratio")


def _link(blocks: int) -> Iterator[Row]:
    variants = ["stock", "none", "bf16", "ours", "ours bf16"]
    options: dict[str, Any] = {"steps": 2, "blocks": blocks, "variants": variants}
    with link.network(2, MBIT) as network:
        times = ranks.run("train", 2, network, model="mlp", batch=64, **options)
    yield from _ratios("step", f"mlp, 25 MiB, {MBIT} Mbit/s", times)


def _fsdp(blocks: int) -> Iterator[Row]:
    times = ranks.run("fsdp", 2, width=1024, n_blocks=6, steps=2, blocks=blocks)
    yield from _ratios("step", "fully_shard, 6 blocks of 4 MiB, 2 ranks", times)


def _watch(blocks: int) -> Iterator[Row]:
    times = ranks.run("watched", 2, calls=500, blocks=blocks)
    yield from _ratios("all-reduce of 4 KiB", "watched, 2 ranks", times)


def _fit(
    name: str, n: int, times: int, network: link.Network | None = None
) -> tuple[Line, list[Row]]:
    """The line of some sizes, and how far it is from others."""
    sizes = FITTED + HELD_BACK
    is_bound = n <= len(cores.usable())
    options: dict[str, Any] = {"sizes": sizes, "times": times, "is_bound": is_bound}
    found = ranks.run("allreduce", n, network, **options)
    line = Line.fit((size, found[str(size)]) for size in FITTED)
    errors = [line.error(size, found[str(size)]) * 100 for size in HELD_BACK]
    workload = f"{name}, {n} ranks"
    return line, [
        Row("alpha", workload, "model", "", 1, line.alpha_s * 1e6, "us"),
        Row("beta", workload, "model", "", 1, line.beta_s_per_byte * 1e9, "ns/B"),
        Row("error, median", workload, "model", "", 1, _median(errors), "%"),
        Row("error, largest", workload, "model", "", 1, max(errors), "%"),
    ]


def _model(blocks: int) -> Iterator[Row]:
    for n in (2, 3, 4):
        yield from _fit("loopback", n, 3 * blocks)[1]
    if link.why_not() is not None:
        return
    lines = {}
    for n, mbit in ((2, MBIT), (2, SLOW_MBIT), (3, SLOW_MBIT), (4, SLOW_MBIT)):
        with link.network(n, mbit) as network:
            lines[n, mbit], rows = _fit(f"{mbit} Mbit/s", n, blocks, network)
        yield from rows
    # A ring fitted on two ranks, held against three and four.
    ring = Ring.of(lines[2, SLOW_MBIT], 2)
    for n in (3, 4):
        seconds = [lines[n, SLOW_MBIT].seconds(size) for size in HELD_BACK]
        told = [ring.allreduce(n).seconds(size) for size in HELD_BACK]
        errors = [abs(a - b) / b * 100 for a, b in zip(told, seconds, strict=True)]
        workload = f"{SLOW_MBIT} Mbit/s, {n} ranks from 2"
        yield Row("error, median", workload, "ring", "", 1, _median(errors), "%")
        yield Row("error, largest", workload, "ring", "", 1, max(errors), "%")


def _simulated(blocks: int) -> Iterator[Row]:
    for name, ring in simulated.LINKS.items():
        yield from simulated.data_parallel(name, ring)
    yield from simulated.pipelines()
    yield simulated.devices()


def _show(screen: Console, rows: list[Row]) -> None:
    table = new_table(("of", "figure", "variant", "against"), ("value",))
    for r in rows:
        value = f"{r.value:.2f}{'x' if r.unit == 'ratio' else ' ' + r.unit}"
        table.add_row(r.workload, r.figure, r.variant, r.against, value)
    show(screen, [("ranks", table)])
