"""A plot of throughput and memory over the batch size."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pai_torchacc.batch_size.result import BatchSize

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
    trials = [t for t in found.trials if not t.trouble]
    sizes = [t.batch for t in trials]
    figure = Figure(figsize=(7, 6), layout="constrained")
    speed, memory = figure.subplots(2, 1, sharex=True)
    speed.plot(sizes, [t.throughput for t in trials], marker="o")
    speed.set(ylabel="samples a second", xscale="log", ylim=(0, None))
    speed.set_title(f"batch {found.batch}, accumulation {found.accumulation}")
    needs = [t.need_bytes / _MIB for t in trials]
    memory.plot(sizes, needs, "o", label="needs")
    memory.plot(sizes, [t.held_bytes / _MIB for t in trials], "x", label="held")
    if found.memory:
        line = [found.memory.predict(n) / _MIB for n in sizes]
        memory.plot(sizes, line, label="line through the three largest")
    memory.axhline(found.limit_bytes / _MIB, color="gray", label="limit")
    memory.set(xlabel="batch", ylabel="MiB", yscale="log")
    memory.set_xticks(sizes, [str(n) for n in sizes])
    memory.minorticks_off()
    for axes in (speed, memory):
        axes.axvline(found.batch, color="tab:green", linestyle=":", label="chosen")
    memory.legend(fontsize="small")
    figure.savefig(file, dpi=110)
