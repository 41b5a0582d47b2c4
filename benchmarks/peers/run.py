"""``python -m pai_torchacc bench peers``: plans beside the engines people export to."""

from __future__ import annotations

import argparse
import copy
import csv
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.peers.models import MODELS
from benchmarks.peers.rivals import RIVALS
from pai_torchacc.bench.measure import alternate, raise_malloc_thresholds
from pai_torchacc.commands.usage import UsageError

BATCHES = (1, 8)
OURS = ("stock", "enabled", "planned")
TOLERANCE = 1e-2
"""Of outputs, by their largest element, against stock's."""


@dataclass
class Row:
    """One network, one batch size; microseconds of the least block."""

    model: str
    batch: int
    threads: int
    us: dict[str, float] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)
    """Of rivals that are not measured."""

    def against(self, rivals: list[str]) -> float | None:
        """The fastest of these rivals' time divided by the plan's."""
        times = [self.us[rival] for rival in rivals if rival in self.us]
        return min(times) / self.us["planned"] if times else None


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Measure, print and write; the document and the exit status."""
    names = [
        name
        for name in MODELS
        if not options.names or any(part in name for part in options.names)
    ]
    if not names:
        raise UsageError(f"no model is named like that; there are {', '.join(MODELS)}")
    raise_malloc_thresholds()
    rows = []
    for n_threads in options.threads or (1,):
        torch.set_num_threads(n_threads)
        for name in names:
            for batch in options.batches:
                row = measure(name, batch, options.rivals, options.quick)
                if row is not None:
                    _print(row, options.rivals)
                    rows.append(row)
                if options.csv:
                    _write(Path(options.csv), rows, options.rivals)
    _print_means(rows, options.rivals)
    return [asdict(row) for row in rows], 0


def measure(name: str, batch: int, rivals: list[str], quick: bool) -> Row | None:
    """All ways in turn; None where the network is not installed."""
    torch.manual_seed(0)
    row = Row(name, batch, torch.get_num_threads())
    try:
        net, inputs = MODELS[name](batch)
    except ModuleNotFoundError as error:
        print(f"{name}, batch {batch}: not measured, {error.name} is not installed")
        return None
    ptac.disable()
    plain = net.eval()
    eager = _call_of(plain, inputs)
    expected = _first(eager())
    variants: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "stock": (ptac.disable, eager),
        "enabled": (ptac.enable, eager),
    }
    optimized = copy.deepcopy(plain)
    ptac.enable()
    ptac.optimize(optimized, freeze=True, on_refusal="ignore")  # as exports are
    ours = _call_of(optimized, inputs)

    def to_plans() -> None:
        # Switching forgets plans; the first call makes them anew.
        ptac.enable("operator_fusion", "memory_pool", "graph_optimization")
        ours()

    to_plans()
    _check(_first(ours()), expected, "planned")
    variants["planned"] = to_plans, ours
    ptac.disable()
    for rival in rivals:
        try:
            call = RIVALS[rival](copy.deepcopy(plain), inputs)
            _check(_first(call()), expected, rival)
        except Exception as error:
            row.why[rival] = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
            continue
        variants[rival] = ptac.disable, call
    blocks, block_s = (6, 0.02) if quick else (12, 0.05)
    timed = alternate(variants, blocks=blocks, block_s=block_s)
    ptac.disable()
    row.us = {way: round(1e6 * timing.best, 2) for way, timing in timed.items()}
    return row


def _call_of(net: nn.Module, inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad():
            return net(*inputs)

    return call


def _first(outputs: Any) -> Tensor:
    while isinstance(outputs, list | tuple):
        outputs = outputs[0]
    return torch.as_tensor(outputs).detach().clone()


def _check(made: Tensor, expected: Tensor, who: str) -> None:
    error = (made - expected).abs().max() / expected.abs().max()
    if not error <= TOLERANCE:
        raise ValueError(f"{who} is wrong by {error:.1e} of the largest element")


def _print(row: Row, rivals: list[str]) -> None:
    ways = [way for way in (*OURS[1:], *rivals) if way in row.us]
    ratios = "  ".join(f"{way} {row.us['stock'] / row.us[way]:.2f}" for way in ways)
    text = f"{row.model}, batch {row.batch}, {row.threads} threads"
    print(f"{text}: stock {row.us['stock']:.0f} us; {ratios}", flush=True)
    for rival, why in row.why.items():
        print(f"    {rival} not measured: {why}")


def _print_means(rows: list[Row], rivals: list[str]) -> None:
    for n_threads in sorted({row.threads for row in rows}):
        mine = [row for row in rows if row.threads == n_threads]
        engines = [rival for rival in rivals if rival != "inductor"]
        for who in (engines, *([rival] for rival in rivals)):
            found = [ratio for row in mine if (ratio := row.against(who)) is not None]
            if found:
                mean = math.exp(sum(map(math.log, found)) / len(found))
                print(
                    f"{n_threads} threads, planned against the faster of "
                    f"{', '.join(who)}: {mean:.2f} in the mean of {len(found)}, "
                    f"least {min(found):.2f}"
                )


def _write(path: Path, rows: list[Row], rivals: list[str]) -> None:
    ways = (*OURS, *rivals)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("model", "batch", "threads", *(f"{way}_us" for way in ways)))
        for row in rows:
            times = (row.us.get(way, "") for way in ways)
            writer.writerow((row.model, row.batch, row.threads, *times))
