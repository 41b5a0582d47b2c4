"""Loss curves of stock and of ours for the four rates, side by side."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.learning_rate.methods import METHODS, OURS, STOCK
from benchmarks.learning_rate.problems import MOMENTA, PROBLEMS, RATES, Case
from benchmarks.learning_rate.training import Budget, train
from pai_torchacc.commands.usage import UsageError

SHOWN = ("digits_mlp", "digits_cnn")
N_TRAININGS = len(SHOWN) * len(MOMENTA) * len(RATES) * 2
_WINDOW = 20
"""Steps of the running mean."""

_HIGHEST = 10.0
"""Of the axis: losses beyond have diverged."""


def check() -> None:
    """Raise UsageError where nothing can be drawn."""
    if find_spec("matplotlib") is None:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: "
            "pip install pai-torchacc[bench]"
        )


def draw(path: Path, seed: int, budget: Budget) -> None:
    """Train, and write a PNG: a row for problem and momentum, a column for method."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    settings = [(name, momentum) for name in SHOWN for momentum in MOMENTA]
    figure, grid = pyplot.subplots(
        len(settings), 2, figsize=(9, 11), layout="constrained", sharey="row"
    )
    for axes_row, (name, momentum) in zip(grid, settings, strict=True):
        for axes, variant in zip(axes_row, (STOCK, OURS), strict=True):
            for lr in RATES:
                case = Case(PROBLEMS[name], momentum, lr)
                outcome = train(case, METHODS[variant], seed, budget, with_curve=True)
                axes.plot(running_mean(outcome.curve), label=f"{lr:g}", linewidth=1)
            axes.set(yscale="log", title=f"{name}, momentum {momentum:g}: {variant}")
        low, high = axes_row[0].get_ylim()
        axes_row[0].set(ylabel="loss", ylim=(low, min(high, _HIGHEST)))
    for axes in grid[-1]:
        axes.set_xlabel("step")
    grid[0, 0].legend(title="the user's rate", fontsize="small")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def running_mean(values: tuple[float, ...], window: int = _WINDOW) -> np.ndarray:
    """Mean of the last ones, of fewer at the beginning; losses that diverge end it."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - window, 0)
    return (sums[last] - sums[first]) / (last - first)
