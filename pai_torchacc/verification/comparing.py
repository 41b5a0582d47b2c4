"""One result of stock beside the same of ours, as the numerics level asks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pai_torchacc.verification.running import Results
from pai_torchacc.verification.ties import CLOSE, FAST, ulp

SMALL = 1000
"""Tensors with fewer elements are held to the looser factor throughout."""
POOLED = 100
"""Tensors with fewer elements are too few for statistics and are judged together."""
INCOMPARABLE = 0.05
"""Relative distance of stock to float64 from which they did not compute the same."""
LEAST_INT8_DB = 20.0
"""Signal to noise of each tensor where int8 layers ran, against their dequantized
weights: what is left are roundings of 8 bits, which deep models add up."""


@dataclass(frozen=True)
class Comparison:
    """One result.

    Errors are absolute, against float64; None for equal bits, where there is nothing
    to measure, and for results without a reference, whose ``note`` says so.
    """

    name: str
    n_elements: int
    is_equal: bool
    passes: bool
    stock_rms: float | None = None
    our_rms: float | None = None
    stock_max: float | None = None
    our_max: float | None = None
    note: str = ""


def missing(stock: Results, ours: Results) -> Iterator[Comparison]:
    """Results that one side alone gives."""
    for name in sorted(stock.keys() ^ ours.keys()):
        who = "stock" if name in stock else "acceleration"
        size = (stock | ours)[name].numel()
        yield Comparison(name, size, False, False, note=f"only {who} gives it")


def compare_int8(stock: Results, ours: Results) -> Iterator[Comparison]:
    """Int8 layers beside their dequantized weights: the switch has its own bound."""
    for name in filter(ours.__contains__, stock):
        s, o = stock[name], ours[name]
        passes, note = is_equal, _ = equal(s, o), ""
        if not is_equal and s.shape == o.shape and s.is_floating_point():
            differ = (s != o) & ~(s.isnan() & o.isnan())
            signal = s.double()[s.isfinite()].square().sum().item()
            noise = (o.double() - s.double())[differ].square().sum().item()
            passes, note = _int8_verdict(signal, noise)
        yield Comparison(name, s.numel(), is_equal, passes, note=note)


def _int8_verdict(signal: float, noise: float) -> tuple[bool, str]:
    """Whether a result of int8 layers is near enough, and what to say of it."""
    if noise == 0:
        return True, "int8, equal numbers"
    if not math.isfinite(noise):
        return False, "int8, not finite where stock is"
    if signal == 0:
        return False, "int8, stock gives zeros"
    db = 10 * math.log10(signal / noise)
    return db >= LEAST_INT8_DB, f"int8, {db:.1f} dB"


def compare(
    stocks: list[Results],
    ours: list[Results],
    lowered: list[Results],
    exact: Results,
    numerics: str,
) -> Iterator[Comparison]:
    """Compare the first run of each side; the others tell of its error as well.

    ``lowered`` is stock in bfloat16, where rows that round their operands have run.
    """
    stock, our = stocks[0], ours[0]
    small: list[list[Tensor]] = []
    for name in filter(our.__contains__, stock):
        s, o, reference = stock[name], our[name], exact.get(name)
        is_equal = equal(s, o)
        if _strides(s) != _strides(o):
            note = f"strides {_strides(o)}, stock's {_strides(s)}"
            yield Comparison(name, s.numel(), is_equal, False, note=note)
        elif is_equal or numerics == "exact" or not _is_judged(s, o):
            yield Comparison(name, s.numel(), is_equal, passes=is_equal)
        elif reference is None or not _is_comparable(s, reference):
            close = torch.allclose(s, o, **CLOSE, equal_nan=True)
            yield Comparison(name, s.numel(), False, close, note="no reference")
        elif s.numel() < POOLED:
            small.append([reference, *(r[name] for r in stocks + ours + lowered)])
        else:
            runs = ([r[name] for r in runs] for runs in (stocks, ours, lowered))
            yield _judge(name, *runs, reference, ulp(s), numerics)
    if small:
        least = max(ulp(s) for _, s, *_ in small)
        reference, *pooled = _pool(small)
        n, n_both = len(stocks), len(stocks) + len(ours)
        runs = pooled[:n], pooled[n:n_both], pooled[n_both:]
        yield _judge(f"{len(small)} small tensors", *runs, reference, least, numerics)


def _strides(t: Tensor) -> tuple[int, ...] | None:
    return t.stride() if t.layout is torch.strided else None


def _is_judged(a: Tensor, b: Tensor) -> bool:
    """Whether these may differ at all: floating results of one kind."""
    return a.is_floating_point() and a.shape == b.shape and a.dtype == b.dtype


def equal(a: Tensor, b: Tensor) -> bool:
    """Same bits, but for what is in a NaN."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_complex():
        a, b = torch.view_as_real(a), torch.view_as_real(b)
    same = (a == b) & (a.signbit() == b.signbit()) | a.isnan() & b.isnan()
    return bool(same.all())


def _is_comparable(stock: Tensor, reference: Tensor) -> bool:
    """Random operators may draw other numbers in float64."""
    if stock.shape != reference.shape:
        return False
    finite = torch.isfinite(stock) & torch.isfinite(reference)
    r = reference[finite]
    distance = (stock[finite].double() - r).norm()
    return bool(distance <= INCOMPARABLE * r.norm())


def _pool(small: list[list[Tensor]]) -> list[Tensor]:
    """Many small tensors as one, each scaled to its reference's root mean square."""
    scales = [max(_rms(r[r.isfinite()].double()), 1e-300) for r, *_ in small]
    return [
        torch.cat(
            [(t[i].double() / s).flatten() for t, s in zip(small, scales, strict=True)]
        )
        for i in range(len(small[0]))
    ]


def _judge(
    name: str,
    stocks: list[Tensor],
    ours: list[Tensor],
    lowered: list[Tensor],
    reference: Tensor,
    ulp: float,
    numerics: str,
) -> Comparison:
    """Errors of ours against a multiple of stock's own.

    ``m * stock + 2 * ulp * size``, where size is the result's root mean square or its
    largest magnitude, and m is 2 for the root mean square error of all but small
    tensors, else 3. Of several runs, stock's error is the largest and ours the least: a
    kernel gone wrong is so each time.

    That is the level ``close``. ``fast`` allows m five times as large and, where rows
    that round their operands have run, m times the error that stock has in bfloat16.
    """
    stock, our = stocks[0], ours[0]
    finite = torch.isfinite(stock) & torch.isfinite(our)
    same_kind = equal(stock[~finite], our[~finite])
    for t in (*stocks, *ours, *lowered, reference):
        finite &= torch.isfinite(t)
    r = reference[finite].double()
    s, o, low = (
        [(t[finite].double() - r).abs() for t in runs]
        for runs in (stocks, ours, lowered)
    )
    stock_rms, our_rms, size = max(map(_rms, s)), min(map(_rms, o)), _rms(r)
    stock_max, our_max, largest = max(map(_max, s)), min(map(_max, o)), _max(r.abs())
    rms_factor = 2 if stock.numel() >= SMALL else 3
    more = FAST if numerics == "fast" else 1
    allowed_rms = max([more * stock_rms, *map(_rms, low)])
    allowed_max = max([more * stock_max, *map(_max, low)])
    return Comparison(
        name,
        stock.numel(),
        is_equal=False,
        passes=same_kind
        and our_rms <= rms_factor * allowed_rms + 2 * ulp * size
        and our_max <= 3 * allowed_max + 2 * ulp * largest,
        stock_rms=stock_rms,
        our_rms=our_rms,
        stock_max=stock_max,
        our_max=our_max,
    )


def _rms(t: Tensor) -> float:
    return math.sqrt(float(t.pow(2).mean())) if t.numel() else 0.0


def _max(t: Tensor) -> float:
    return float(t.max()) if t.numel() else 0.0
