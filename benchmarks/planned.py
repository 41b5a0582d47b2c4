"""Inference of the zoo's models by plans, beside stock and beside ``enable()`` alone.

``python -m benchmarks.planned [--threads N] [--csv FILE] [--all] [NAME ...]`` prints
the times of the least blocks and their ratios; names are groups or parts of models'
names. Stock is the same model in the same process with everything switched off.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.zoo.choice import chosen
from benchmarks.zoo.model import MODELS
from pai_torchacc.bench.measure import Call, alternate, raise_malloc_thresholds
from pai_torchacc.graph.planned import everything

COLUMNS = ("model", "threads", "stock_us", "enabled_us", "planned_us", "planned_steps")


def call_of(net: nn.Module, inputs: tuple[Tensor, ...]) -> Call:
    """A call without gradients."""

    def call() -> Any:
        with torch.no_grad():
            return net(*inputs)

    return call


def measure(name: str) -> tuple[Any, ...] | None:
    """A row of the table; None where the model is not planned."""
    torch.manual_seed(0)
    net, inputs, _ = MODELS[name].make()
    plain, optimized = net.eval(), copy.deepcopy(net.eval())
    ptac.enable()
    ptac.optimize(optimized, on_refusal="ignore")
    ours = call_of(optimized, inputs)
    for _ in range(3):
        ours()
    planned = next(p for p in everything if p.entry is optimized._compiled_call_impl)
    if planned.counts()["planned_calls"] == 0:
        print(f"{name:50} not planned: {', '.join(planned.counts()['reasons'])}")
        return None
    n_steps = len(planned.plans()[0][1].steps)
    eager = call_of(plain, inputs)

    return (*(us for _, us in timed(eager, ours)), n_steps)


def timed(
    eager: Call, planned: Call, stock: Call | None = None
) -> Iterator[tuple[str, float]]:
    """Stock, ``enable()`` alone and plans, in turn: microseconds of the least blocks.

    Stock may have a call of its own, where calls change what they work on.
    """

    def to_plans() -> None:
        # Switching forgets plans; the first call makes them anew.
        ptac.enable("operator_fusion", "memory_pool", "graph_optimization")
        planned()

    ways = {
        "stock": (ptac.disable, stock or eager),
        "enabled": (ptac.enable, eager),
        "planned": (to_plans, planned),
    }
    for way, timing in alternate(ways, blocks=10, block_s=0.05).items():
        yield way, round(1e6 * timing.best, 2)


def print_table(
    measure: Callable[[str], tuple[Any, ...] | None], about: str | None
) -> None:
    """The models that the command line names, a row each."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
    rows = []
    print(f"{'model':50} {'stock us':>10}  enabled  planned  steps")
    for name in chosen(options.names, options.all)[0]:
        figures = measure(name)
        ptac.disable()
        if figures is None:
            continue
        stock, enabled, planned, n_steps = figures
        print(f"{name:50} {stock:10.1f} {stock / enabled:7.2f}x", end="")
        print(f" {stock / planned:7.2f}x {n_steps:6}", flush=True)
        rows.append((name, options.threads, *figures))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)


if __name__ == "__main__":
    print_table(measure, __doc__)
