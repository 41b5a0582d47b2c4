"""``python -m benchmarks conv``: every algorithm on shapes of common networks.

Stock, each row that takes the call, and what the table chooses, in turn in one process;
GFLOP/s count the direct sum, whatever was computed; errors are against float64, as
multiples of stock's. NNPACK, which torch's wheels bring along, stands beside.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor

import pai_torchacc as ptac
from benchmarks.extension import last_row
from benchmarks.screen import by_threads, new_table
from pai_torchacc import _host
from pai_torchacc.bench.measure import (
    alternate,
    environment,
    raise_malloc_thresholds,
    thread_counts,
)
from pai_torchacc.bench.run import console, read_targets, write_csv
from pai_torchacc.commands.usage import UsageError, check_outputs


class Shape(NamedTuple):
    """Images, channels in, width, channels out, kernel size."""

    n: int
    channels: int
    width: int
    outputs: int
    kernel: int = 3

    def __str__(self) -> str:
        size = f"{self.kernel}x{self.kernel}"
        return f"{self.n}x{self.channels}@{self.width} to {self.outputs}, {size}"


MAIN = (
    Shape(32, 64, 32, 64),
    Shape(32, 128, 16, 128),
    Shape(32, 256, 8, 256),
    Shape(32, 512, 4, 512),
    Shape(16, 64, 56, 64),
    Shape(16, 128, 28, 128),
    Shape(16, 512, 7, 512),
    Shape(64, 32, 14, 64),
)
"""Those that geometric means are of."""

OTHERS = (
    Shape(16, 64, 56, 64, 5),
    Shape(64, 1, 28, 32),
    Shape(32, 3, 32, 64),
    Shape(32, 16, 32, 16),
    Shape(64, 1, 28, 6, 5),
    Shape(64, 6, 14, 16, 5),
    Shape(1, 64, 56, 64),
)

RESULTS = ("forward", "data", "weight")
MASKS = {"data": (True, False, False), "weight": (False, True, False)}
OPS = ("conv2d", "conv2d_backward")
CHOSEN = "by the table"


@dataclass(frozen=True)
class Row:
    """One algorithm on one call."""

    shape: str
    result: str
    algorithm: str
    """What was asked for: one algorithm, or the table's choice."""
    row: str
    """What ran."""
    n_threads: int
    ms: float
    gflops: float
    ratio: float
    """Stock's time divided by this one's."""
    error: float
    """Root mean square error divided by stock's."""


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure what the options name; the document and the exit status."""
    screen = console()
    check_outputs([options.csv])
    targets = read_targets("conv_target") if options.check else []
    shapes = {str(shape): shape for shape in _shapes(options.shapes)}
    threads = options.threads or thread_counts()
    raise_malloc_thresholds()
    rows: list[Row] = []
    for n, name in by_threads(screen, threads, list(shapes)):
        for result in RESULTS:
            rows += measure(shapes[name], result, n, options.numerics)
    screen.print(_table(rows), soft_wrap=True)
    means = list(_means(rows))
    for mean in means:
        screen.print(str(mean), highlight=False, soft_wrap=True)
    if options.csv:
        write_csv(Path(options.csv), rows)
    short = list(_missed(rows, means, targets))
    for line in short:
        screen.print(line, highlight=False, soft_wrap=True)
    if options.check:
        screen.print(f"{len(short)} targets missed")
    document = {"environment": environment(), "rows": [asdict(r) for r in rows]}
    return document, 1 if short else 0


def _shapes(texts: list[str] | None) -> tuple[Shape, ...]:
    if not texts:
        return MAIN + OTHERS
    try:
        shapes = tuple(Shape(*map(int, text.split(","))) for text in texts)
    except (TypeError, ValueError):
        shapes = ()
    if not shapes or any(min(s) < 1 or s.kernel % 2 == 0 for s in shapes):
        raise UsageError(
            "a shape is N,C,WIDTH,K or N,C,WIDTH,K,KERNEL with an odd kernel, such as "
            "32,64,32,64"
        )
    return shapes


def measure(
    shape: Shape, result: str, n_threads: int, numerics: str = "close"
) -> Iterator[Row]:
    """Rows of one call: stock, NNPACK where it runs, ours each, and the table's."""
    c = _host.load()
    torch.manual_seed(0)
    call, exact, by_nnpack = _call(shape, result)
    variants: dict[str, tuple[Callable[[], None], Callable[[], Tensor]]] = {
        "stock": (ptac.disable, call)
    }
    if result == "forward" and _runs(by_nnpack):
        variants["NNPACK"] = ptac.disable, by_nnpack
    op = OPS[result != "forward"]
    for row, level, can_run, _ in {n: rows for n, _, rows in c.operators()}[op]:
        if can_run and row != "scalar" and _is_at_most(level, numerics):
            variants[row] = partial(_pin, c, row, numerics), call
    variants[CHOSEN] = partial(_pin, c, None, numerics), call
    truth = exact()
    errors, ran = {}, {}
    try:
        for name, (prepare, run_it) in variants.items():
            prepare()
            before = c.counters(op)[0]
            errors[name] = float((run_it().double() - truth).square().mean().sqrt())
            is_ours = c.counters(op)[0] > before
            if is_ours or name in ("stock", "NNPACK", CHOSEN):
                ran[name] = last_row(op) if is_ours else name
                if ran[name] == CHOSEN:
                    ran[name] = "stock"
        timings = alternate(
            {name: variants[name] for name in ran}, blocks=12, block_s=0.02
        )
    finally:
        _pin(c, None, numerics)
        ptac.disable()
    flops = 2 * shape.kernel**2 * shape.n * shape.width**2
    flops *= shape.channels * shape.outputs
    for name, timing in timings.items():
        yield Row(
            str(shape),
            result,
            name,
            ran[name],
            n_threads,
            1e3 * timing.best,
            flops / timing.best / 1e9,
            timings["stock"].best / timing.best,
            errors[name] / errors["stock"] if errors["stock"] else 1.0,
        )


def _is_at_most(level: str, numerics: str) -> bool:
    levels = ("exact", "close", "fast")
    return levels.index(level) <= levels.index(numerics)


def _pin(c: Any, row: str | None, numerics: str) -> None:
    """Only convolutions, by this row or as the table says."""
    for op, _, rows in c.operators():
        if op in OPS:
            c.pin(op, row if row in {r[0] for r in rows} else None)
    ptac.enable("operator_fusion", include=OPS, numerics=numerics)


def _call(
    shape: Shape, result: str
) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Callable[[], Tensor]]:
    """The call, the same in float64, and its forward by NNPACK."""
    n, channels, width, outputs, kernel = shape
    padding = [kernel // 2] * 2
    x = torch.randn(n, channels, width, width).relu_()
    w = torch.randn(outputs, channels, kernel, kernel)
    w *= math.sqrt(2 / (kernel**2 * channels))
    grad = torch.randn(n, outputs, width, width)

    def in_dtype(dtype: torch.dtype) -> Callable[[], Tensor]:
        a, b, g = (t.to(dtype) for t in (x, w, grad))
        if result == "forward":
            return lambda: F.conv2d(a, b, padding=padding)
        one, zero, mask = [1, 1], [0, 0], MASKS[result]
        return lambda: torch.ops.aten.convolution_backward(
            g, a, b, None, one, padding, one, False, zero, 1, mask
        )[mask.index(True)]

    return (
        in_dtype(torch.float32),
        in_dtype(torch.float64),
        lambda: torch._nnpack_spatial_convolution(x, w, None, padding),
    )


def _runs(call: Callable[[], Tensor]) -> bool:
    try:
        call()
    except RuntimeError:
        return False
    return True


def _table(rows: list[Row]) -> Table:
    table = new_table(
        ("convolution", "result", "algorithm"),
        ("threads", "ms", "GFLOP/s", "faster", "error"),
    )
    for r in rows:
        numbers = f"{r.ms:.3f}", f"{r.gflops:.0f}", f"{r.ratio:.2f}x", f"{r.error:.2f}"
        what = f"{CHOSEN}: {r.row}" if r.algorithm == CHOSEN else r.algorithm
        table.add_row(r.shape, r.result, what, str(r.n_threads), *numbers)
    return table


class _Mean(NamedTuple):
    """Of the ratios of what the table chooses, over the main shapes."""

    result: str
    n_threads: int
    value: float
    least: float

    def __str__(self) -> str:
        return (
            f"{self.result}, {self.n_threads} thread(s): geometric mean "
            f"{self.value:.2f}x over the {len(MAIN)} main shapes, "
            f"least {self.least:.2f}x"
        )


def _means(rows: list[Row]) -> Iterator[_Mean]:
    main = {str(shape) for shape in MAIN}
    for n in sorted({r.n_threads for r in rows}):
        for result in RESULTS:
            ratios = [
                r.ratio
                for r in rows
                if r.algorithm == CHOSEN
                and (r.result, r.n_threads) == (result, n)
                and r.shape in main
            ]
            if len(ratios) == len(main):
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                yield _Mean(result, n, mean, min(ratios))


def _missed(
    rows: list[Row], means: list[_Mean], targets: list[dict[str, Any]]
) -> Iterator[str]:
    """Lines for what falls short: means, one shape, or any shape of all."""
    for target in targets:
        at_least = target["at_least"]
        for what, result, n_threads, ratio in _measured(rows, means, target):
            is_meant = (
                target.get("result", result) == result
                and target.get("threads", n_threads) == n_threads
            )
            if is_meant and ratio < at_least:
                yield (
                    f"missed: {what}, {result}, {n_threads} thread(s): "
                    f"{ratio:.2f}x, target >= {at_least}x"
                )


def _measured(
    rows: list[Row], means: list[_Mean], target: dict[str, Any]
) -> Iterator[tuple[str, str, int, float]]:
    if target["shape"] == "mean":
        for mean in means:
            yield "geometric mean", mean.result, mean.n_threads, mean.value
        return
    for r in rows:
        if r.algorithm == CHOSEN and target["shape"] in ("any", r.shape):
            yield r.shape, r.result, r.n_threads, r.ratio
