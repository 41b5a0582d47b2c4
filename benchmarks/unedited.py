"""Unedited programs by plans, beside what ``optimize()`` makes of the same models.

``python -m benchmarks.unedited [--threads N] [--csv FILE] [--all] [--peers] [NAME]``
prints the times of the least blocks, in turn in one process. Names are groups or parts
of models' names; ``--peers`` has those of ``bench peers``, with batch 1.
"""

from __future__ import annotations

import argparse
import copy
import csv
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.peers.models import MODELS as OF_PEERS
from benchmarks.planned import call_of
from benchmarks.zoo.choice import chosen
from benchmarks.zoo.model import MODELS
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds
from pai_torchacc.graph.planned import everything

COLUMNS = ("model", "threads", "stock_us", "enabled_us", "explicit_us", "unedited_us")

CALLS = 6
"""Until a module is planned unasked: two eager ones, two recorded, some to spare."""

Made = tuple[nn.Module, tuple[Tensor, ...]]


def _of_zoo(name: str) -> Made:
    net, inputs, _ = MODELS[name].make()
    return net, inputs


def made(
    names: list[str], is_all: bool, of_peers: bool
) -> Iterator[tuple[str, Callable[[], Made]]]:
    """What the command line names, and what makes it: a network and its inputs."""
    if not of_peers:
        for name in chosen(names, is_all)[0]:
            yield name, partial(_of_zoo, name)
        return
    for name, make in OF_PEERS.items():
        if not names or any(part in name for part in names):
            yield name, partial(make, 1)


def measure(name: str, make: Callable[[], Made]) -> list[float] | None:
    """Microseconds of each way; None where the model is not proved plain."""
    torch.manual_seed(0)
    net, inputs = make()
    eager = call_of(net.eval(), inputs)
    optimized = copy.deepcopy(net)
    explicit = call_of(optimized, inputs)

    def to_explicit() -> None:
        ptac.enable("operator_fusion", "memory_pool", "graph_optimization")
        explicit()

    def to_unedited() -> None:
        ptac.enable("operator_fusion", "memory_pool")
        ptac.enable_graph_optimization()
        for _ in range(CALLS):
            eager()

    ptac.enable()
    ptac.optimize(optimized, on_refusal="ignore")
    for _ in range(3):
        explicit()
    to_unedited()
    if not any(one.counts()["planned_calls"] for one in everything if not one.is_asked):
        print(f"{name:50} not proved plain:\n{ptac.report()}")
        return None
    ways = {
        "stock": (ptac.disable, eager),
        "enabled": (ptac.enable, eager),
        "explicit": (to_explicit, explicit),
        "unedited": (to_unedited, eager),
    }
    timed = alternate(ways, blocks=8, block_s=0.03).values()
    return [round(1e6 * timing.best, 2) for timing in timed]


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    raise_malloc_thresholds()
    rows = []
    print(f"{'model':50} {'stock us':>10}  enabled explicit unedited")
    for name, make in made(options.names, options.all, options.peers):
        figures = measure(name, make)
        ptac.disable()
        if figures is None:
            continue
        stock, *others = figures
        ratios = " ".join(f"{stock / us:7.2f}x" for us in others)
        print(f"{name:50} {stock:10.1f} {ratios}", flush=True)
        rows.append((name, options.threads, *figures))
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(COLUMNS)
            writer.writerows(rows)


if __name__ == "__main__":
    main()
