"""The prices by which gains of the convolution row "implicit" are estimated.

``python -m benchmarks.prices [--seconds S] [--threads N] [--seed N] [--samples FILE]
[RESULT ...]``
draws convolutions as ``benchmarks.neighbours`` does, times stock's and the row's, and
asks the library for the amounts of either (``csrc/ops/conv/implicit/implicit_gain.h``).
It prints the prices whose sums come nearest to the logarithms of the times, in
nanoseconds, as ``implicit_gain.c`` lists them; and what would be chosen by them. With a
file of samples, new ones are added to those that it has, and all of them are fitted.
"""

from __future__ import annotations

import ctypes
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares

import pai_torchacc as ptac
from benchmarks.extension import function
from benchmarks.neighbours import (
    SLOWER,
    Geometry,
    drawing_parser,
    drawn_geometry,
    started,
)
from pai_torchacc import _C
from pai_torchacc.bench.measure import Call, alternate

N_OURS, N_STOCK = 12, 7
RESULTS = ("forward", "data", "weight")
ENOUGH = (1.2, 1.35, 1.5)
"""Gains from which on the row could be chosen."""


class Amounts(ctypes.Structure):
    """``ptac_implicit_amounts``."""

    _fields_ = (
        ("ours", ctypes.c_double * N_OURS),
        ("stock", ctypes.c_double * N_STOCK),
        ("is_lowered", ctypes.c_bool),
        ("gain", ctypes.c_double),
    )


class Sample(NamedTuple):
    """A convolution or a gradient of it, and seconds: ours, stock's."""

    geometry: Geometry
    result: str
    threads: int
    ours: float
    stock: float

    @classmethod
    def read(cls, line: str) -> Sample:
        """One as :meth:`written`."""
        *sizes, result, threads, ours, stock = line.split(",")
        geometry = Geometry(*map(int, sizes), is_last=False)
        return cls(geometry, result, int(threads), float(ours), float(stock))

    def written(self) -> str:
        """A line of comma-separated values."""
        seconds = f"{self.ours:.4g}", f"{self.stock:.4g}"
        return ",".join(map(str, (*self.geometry[:-1], *self[1:3], *seconds)))


def _prepared(geometry: Geometry, result: str) -> tuple[str, Call]:
    if result == "forward":
        return "conv2d", geometry.forward()
    return "conv2d_backward", geometry.gradient(result)


@contextmanager
def _served_by(op: str, row: str) -> Iterator[None]:
    ptac.enable()
    _C.pin(op, row)
    try:
        yield
    finally:
        _C.pin(op, None)
        ptac.disable()


def amounts_of(op: str, call: Call) -> Amounts | None:
    """What the row and stock do in a call; None where the row does none of it."""
    last = function("ptac_implicit_last_amounts", ctypes.POINTER(Amounts))()
    last.contents.ours[0] = 0
    before = _C.counters(op)[0]
    call()
    is_known = _C.counters(op)[0] > before and last.contents.ours[0] > 0
    return last.contents if is_known else None


def timed(draw: random.Random, row: str, results: list[str]) -> Sample | None:
    """A sample, or None where the row does not serve what was drawn."""
    geometry, result = drawn_geometry(draw), draw.choice(results)
    if geometry is None or geometry.is_last:
        return None
    op, call = _prepared(geometry, result)
    with _served_by(op, row):
        if amounts_of(op, call) is None:
            return None
        seconds = alternate(
            {"stock": (ptac.disable, call), "ours": (ptac.enable, call)}, 8, 0.003
        )
    n_threads = torch.get_num_threads()
    ours, stock = (seconds[side].best for side in ("ours", "stock"))
    return Sample(geometry, result, n_threads, ours, stock)


def with_amounts(
    samples: list[Sample], row: str
) -> list[tuple[Sample, list[float], list[float], bool]]:
    """Those of which the library knows what is done: ours, stock's, and stock's way."""
    found = []
    for sample in samples:
        op, call = _prepared(sample.geometry, sample.result)
        with _served_by(op, row):
            if known := amounts_of(op, call):
                counted = list(known.ours), list(known.stock), known.is_lowered
                found.append((sample, *counted))
    return found


def fitted(amounts: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Prices, seconds: none below zero; zero of what there is nowhere."""
    used = amounts.any(axis=0)
    if not used.any():
        return np.zeros(amounts.shape[1])
    one = amounts[:, used]
    typical = np.array([np.median(column[column > 0]) for column in one.T])
    start = np.log(np.median(seconds) / len(typical) / typical)
    found = least_squares(
        lambda logs: np.log(one @ np.exp(logs)) - np.log(seconds),
        start,
        loss="soft_l1",
        f_scale=0.2,
    )
    prices = np.zeros(amounts.shape[1])
    prices[used] = np.exp(found.x)
    return prices


def print_fit(samples: list[Sample], row: str) -> None:
    """Prices of samples of one result, and what they would choose."""
    found = with_amounts(samples, row)
    seconds = np.array([(sample.ours, sample.stock) for sample, *_ in found])
    is_lowered = np.array([lowered for *_, lowered in found])
    expected = np.zeros_like(seconds)
    print(f"{samples[0].result}, {samples[0].threads} threads, {len(found)} of them")
    for name, side, these in (
        ("ours", 0, np.ones_like(is_lowered)),
        ("blocked", 1, ~is_lowered),
        ("lowered", 1, is_lowered),
    ):
        amounts = np.array([counted[1 + side] for counted in found])[these]
        prices = fitted(amounts, seconds[these, side])
        expected[these, side] = amounts @ prices
        errors = np.log(expected[these, side] / seconds[these, side])
        listed = ", ".join(f"{price * 1e9:.3g}" for price in prices)
        print(f"    {name}: {{{listed}}}, of {len(errors)} off by {errors.std():.2f}")
    gains, times = (t[:, 1] / t[:, 0] for t in (expected, seconds))
    for enough in ENOUGH:
        chosen = gains >= enough
        mean = np.exp(np.log(np.where(chosen, times, 1)).mean())
        print(
            f"    from {enough} on: {chosen.sum()} chosen, "
            f"{(times[chosen] < SLOWER).sum()} of them under {SLOWER}; "
            f"all {mean:.2f} times as fast"
        )
    for i in np.argsort(times / gains):
        if gains[i] >= ENOUGH[0] and times[i] < SLOWER:
            print(f"    {times[i]:.2f} for {gains[i]:.2f}  {found[i][0].geometry}")


def main() -> None:
    """Draw, time, fit and print."""
    parser = drawing_parser(__doc__, seconds=300)
    parser.add_argument("--samples", type=Path)
    parser.add_argument("results", nargs="*", default=[*RESULTS], metavar="RESULT")
    options = parser.parse_args()
    draw = started(options)
    with ptac.enable():  # which looks at PTAC_CPU_ISA
        rows = {op: rows for op, _, rows in _C.operators()}["conv2d"]
    row = max(name for name, _, can_run, _ in rows if can_run and "implicit" in name)
    samples = []
    if options.samples and options.samples.is_file():
        samples = [
            Sample.read(line) for line in options.samples.open() if line[0].isdigit()
        ]
    until = time.monotonic() + options.seconds
    with torch.no_grad():
        while time.monotonic() < until:
            if one := timed(draw, row, options.results):
                samples.append(one)
                if options.samples:
                    with options.samples.open("a") as file:
                        print(one.written(), file=file)
        for result in options.results:
            wanted = (result, options.threads)
            if these := [s for s in samples if (s.result, s.threads) == wanted]:
                print_fit(these, row)


if __name__ == "__main__":
    main()
