"""Training steps of the zoo's models by plans, beside stock and ``enable()`` alone.

``python -m benchmarks.planned_steps [--threads N] [--csv FILE] [--all] [NAME ...]``
prints the times of the least blocks and their ratios; names are groups or parts of
models' names. Each way trains a copy of its own, in the same process.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import pai_torchacc as ptac
from benchmarks.zoo.choice import chosen
from benchmarks.zoo.model import MODELS
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds

COLUMNS = ("model", "threads", "stock_us", "enabled_us", "planned_us", "planned_steps")


def step_of(name: str) -> Callable[[], Any]:
    """One step of a model in training: zeroed gradients, loss, backward, update."""
    torch.manual_seed(0)
    model = MODELS[name]
    net, inputs, target = model.make()
    net.train()
    optimizer = model.optimizer(net.parameters())
    loss_of = model.loss

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(net(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(name: str) -> tuple[Any, ...] | None:
    """A row of the table; None where the step is not planned."""
    ptac.enable()
    planned = ptac.optimize(step_of(name), on_refusal="ignore")
    for _ in range(4):
        planned()
    found = planned.__ptac_planned__
    if found.counts()["planned_calls"] == 0:
        print(f"{name:50} not planned: {', '.join(found.counts()['reasons'])}")
        return None
    n_steps = len(found.plans()[-1][1].steps)

    def to_plans() -> None:
        # Switching forgets plans; the first call makes them anew.
        ptac.enable("operator_fusion", "memory_pool", "graph_optimization")
        planned()

    timed = alternate(
        {
            "stock": (ptac.disable, step_of(name)),
            "enabled": (ptac.enable, step_of(name)),
            "planned": (to_plans, planned),
        },
        blocks=10,
        block_s=0.05,
    )
    return (*(round(1e6 * timed[way].best, 2) for way in timed), n_steps)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
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
    main()
