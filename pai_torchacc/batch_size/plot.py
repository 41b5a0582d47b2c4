"""A plot of throughput and memory over the batch size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pai_torchacc.batch_size.candidates import NEAR_BEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from pai_torchacc.batch_size.result import BatchSize, Trial

_MIB = 2**20


def draw(found: BatchSize, file: str | os.PathLike[str]) -> None:
    """See :meth:`BatchSize.plot`. No window is opened, no backend changed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot() needs matplotlib, which is not installed: "
            "pip install pai-torchacc[bench]"
        ) from error
    figure = Figure(figsize=(7, 6.5), layout="constrained")
    speed, memory = figure.subplots(2, 1, sharex=True)
    _draw_throughput(speed, found)
    _draw_memory(memory, found)
    ticks = _apart([found.batch, *(t.batch for t in _fitting(found))])
    memory.set_xticks(ticks, [str(n) for n in ticks])
    memory.minorticks_off()
    for axes in (speed, memory):
        axes.axvline(found.batch, color="tab:green", linestyle=":", label="chosen")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(file, dpi=110)


def _fitting(found: BatchSize) -> list[Trial]:
    return [t for t in found.trials if not t.trouble]


def _draw_throughput(axes: Axes, found: BatchSize) -> None:
    trials = _fitting(found)
    best = max(t.throughput for t in trials)
    axes.plot([t.batch for t in trials], [t.throughput for t in trials], "o-")
    if disturbed := [t for t in trials if not t.is_quiet]:
        sizes, rates = zip(*((t.batch, t.throughput) for t in disturbed), strict=True)
        axes.plot(sizes, rates, "o", mfc="white", mec="tab:blue", label="disturbed")
    axes.axhspan(
        (1 - NEAR_BEST) * best, best, color="tab:green", alpha=0.15, label="best 5 %"
    )
    steps = f" x {found.accumulation} steps" if found.accumulation > 1 else ""
    axes.set_title(f"batch {found.batch}{steps}: {found.throughput:,.0f} samples/s")
    axes.set(xscale="log", ylabel="samples a second", ylim=(0, 1.1 * best))
    axes.yaxis.set_major_formatter("{x:,.0f}")


def _draw_memory(axes: Axes, found: BatchSize) -> None:
    trials = _fitting(found)
    sizes = [t.batch for t in trials]
    axes.plot(sizes, [t.held_bytes / _MIB for t in trials], "x", label="held")
    axes.plot(sizes, [t.need_bytes / _MIB for t in trials], "o", label="needs")
    if line := found.memory:
        ends = [n for n in sizes if n >= line.sizes[0]]
        axes.plot(ends, [line.predict(n) / _MIB for n in ends], label="line")
    axes.axhline(found.limit_bytes / _MIB, color="gray", label="limit")
    axes.set(xlabel="batch", ylabel="MiB", yscale="log")
    axes.yaxis.set_major_formatter("{x:,g}")


def _apart(sizes: list[int]) -> list[int]:
    """Those of these sizes, earlier ones first, whose labels have room."""
    gap = (max(sizes) / min(sizes)) ** (1 / 10)
    kept: list[int] = []
    for n in sizes:
        if all(max(n, other) >= gap * min(n, other) for other in kept if other != n):
            kept.append(n)
    return sorted(set(kept))
