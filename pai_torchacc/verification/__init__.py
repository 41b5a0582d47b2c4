"""Numbers under contract: stock and accelerated results, both against float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host, _switch
from pai_torchacc._switch import disabled
from pai_torchacc.calibration import BY_NAME

SMALL = 1000
"""Tensors with fewer elements are held to the looser factor throughout."""
POOLED = 100
"""Tensors with fewer elements are too few for statistics and are judged together."""
INCOMPARABLE = 0.05
"""Relative distance of stock to float64 from which they did not compute the same."""
NUDGES = 4
"""More runs of both, from numbers that differ in the last bit, where one run fails.

One shows too little of the error where a function has kinks: next to zero a ReLU's
input falls on either side by chance, and with it a gradient of stock's, or of ours.
"""
FAST = 5
"""How many times level close's factors level fast allows: ten times stock's error."""
LEAST_INT8_DB = 20.0
"""Signal to noise of each tensor where int8 layers ran, against their dequantized
weights: what is left are roundings of 8 bits, which deep models add up."""
CLOSE = {"rtol": 1e-3, "atol": 1e-5}
"""What is asked of results without a reference: a kernel gone wrong shows, no more."""


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


class Verification:
    """What :func:`pai_torchacc.verify` found; true when all tensors pass, at least one.

    ``rows`` are the comparisons, ``numerics`` is the level they were held to,
    ``accelerated`` counts the calls that ran accelerated, and ``float64_error`` says
    why there is no reference, or is None.
    """

    def __init__(
        self,
        rows: list[Comparison],
        numerics: str,
        accelerated: int,
        float64_error: str | None,
    ):
        self.rows = rows
        self.numerics = numerics
        self.accelerated = accelerated
        self.float64_error = float64_error

    def __bool__(self) -> bool:
        return bool(self.rows) and all(row.passes for row in self.rows)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        header = (
            "tensor",
            "elements",
            "bits",
            "rms: stock",
            "ours",
            "max: stock",
            "ours",
            "",
        )
        cells = [header] + [
            (
                r.name,
                str(r.n_elements),
                "equal" if r.is_equal else "differ",
                *(_number(v) for v in (r.stock_rms, r.our_rms, r.stock_max, r.our_max)),
                "; ".join(filter(None, (r.note, "" if r.passes else "FAILS"))),
            )
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        if not self.rows:
            lines = ["the model gives no tensors to compare"]
        if self.float64_error:
            lines.append(f"no float64 reference: {self.float64_error}")
        verdict = "kept" if self else "BROKEN"
        calls = f"{self.accelerated} calls" if self.accelerated else "nothing ran"
        lines.append(f"contract {self.numerics!r}: {verdict}; {calls} accelerated")
        return "\n".join(lines)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def verify(model: Any, inputs: tuple[Any, ...], backward: bool = True) -> Verification:
    """See :func:`pai_torchacc.verify`."""
    numerics = _switch.current().numerics
    state = torch.get_rng_state()

    def run(nudge: int = 0, lowered: bool = False) -> Results:
        torch.set_rng_state(state)
        return _run(model, inputs, backward, None, nudge, lowered)

    try:
        with disabled():
            stock = [run()]
        before = _accelerated_calls()
        ours = [run()]
        accelerated, rounded, int8 = (
            now - then for now, then in zip(_accelerated_calls(), before, strict=True)
        )
        torch.set_rng_state(state)
        with disabled():
            exact, error = _try_float64(model, inputs, backward)
            asked = rounded and numerics == "fast"
            lowered = list(_lowered(run, stock[0])) if asked else []
        if int8:
            rows = list(_compare_int8(stock[0], ours[0]))
            return Verification(rows, numerics, accelerated, error)
        rows = list(_compare(stock, ours, lowered, exact, numerics))
        if (
            exact
            and numerics != "exact"
            and not all(row.passes for row in rows)
            and _is_repeated(ours[0], run())
        ):
            ours += _more(run, ours[0])
            with disabled():
                stock += _more(run, stock[0])
            rows = list(_compare(stock, ours, lowered, exact, numerics))
    finally:
        torch.set_rng_state(state)
    return Verification(rows, numerics, accelerated, error)


def _accelerated_calls() -> tuple[int, int, int]:
    """Of all operators and threads so far.

    And among them those that rounded operands to bfloat16, and those of int8 layers.
    None where nothing can be accelerated.
    """
    try:
        c = _host.extension()
    except _host.Unavailable:
        return 0, 0, 0
    calls = {op: c.counters(op)[0] for op, _, _ in c.operators()}
    return sum(calls.values()), c.bf16_calls(), sum(calls[op] for op in BY_NAME)


Results = dict[str, Tensor]


def _run(
    model: Any,
    inputs: tuple[Any, ...],
    backward: bool,
    dtype: torch.dtype | None,
    nudge: int = 0,
    lowered: bool = False,
) -> Results:
    """Results of a copy of the model, in another floating type or nudged if asked.

    ``lowered`` runs it under torch's autocast to bfloat16.
    """
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)
        if dtype is not None:
            model = model.to(dtype)
    taken = [_map(i, lambda t: _fresh(t, dtype)) for i in inputs]
    if nudge:
        parameters = model.parameters() if isinstance(model, torch.nn.Module) else ()
        _nudge([*parameters, *(t for i in taken for _, t in _tensors(i))], nudge)
    autocast = torch.autocast("cpu", torch.bfloat16) if lowered else nullcontext()
    with torch.set_grad_enabled(backward), autocast:
        output = model(*taken)
    results = {f"output{name}": t for name, t in _tensors(output)}
    if backward:
        results |= _gradients(model, taken, list(results.values()))
    return {name: t.detach() for name, t in results.items()}


def _is_repeated(first: Results, again: Results) -> bool:
    """Whether a run gave the same bits again; one that does not is excused nothing."""
    return first.keys() == again.keys() and all(
        _equal(t, again[name]) for name, t in first.items()
    )


def _more(run: Callable[[int], Results], first: Results) -> Iterator[Results]:
    """Runs from nudged numbers that gave tensors like the first run's."""
    for nudge in range(1, NUDGES + 1):
        try:
            found = run(nudge)
        except Exception:  # a model that looks at its numbers may refuse these
            continue
        if _is_alike(found, first):
            yield found


def _lowered(run: Callable[..., Results], first: Results) -> Iterator[Results]:
    """Stock's results in bfloat16, where autocast can run the model."""
    try:
        found = run(lowered=True)
    except Exception:  # autocast does not know every operator
        return
    if _is_alike(found, first):
        yield found


def _is_alike(found: Results, first: Results) -> bool:
    return found.keys() == first.keys() and all(
        found[name].shape == t.shape for name, t in first.items()
    )


def _nudge(tensors: list[Tensor], seed: int) -> None:
    """Move numbers by a unit in their last place, up or down or not."""
    draws = torch.Generator().manual_seed(seed)
    for t in tensors:
        if t.dtype is not torch.float32 or t.layout is not torch.strided:
            continue
        signs = torch.randint(-1, 2, t.shape, generator=draws)
        with torch.no_grad():
            t.copy_(t.double() * (1 + signs * _ulp(t) / 2))


def _fresh(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    copied = tensor.detach().clone()
    if dtype is not None and copied.is_floating_point():
        copied = copied.to(dtype)
    return copied.requires_grad_(tensor.requires_grad)


def _gradients(model: Any, inputs: list[Any], outputs: list[Tensor]) -> Results:
    parameters = (
        dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
    )
    wanted = {f"grad {n}": p for n, p in parameters.items() if p.requires_grad}
    for i, value in enumerate(inputs):
        wanted |= {
            f"grad input {i}{n}": t for n, t in _tensors(value) if t.requires_grad
        }
    roots = [o.sum() for o in outputs if o.requires_grad and o.is_floating_point()]
    if not roots or not wanted:
        return {}
    found = torch.autograd.grad(sum(roots), list(wanted.values()), allow_unused=True)
    return {name: g for name, g in zip(wanted, found, strict=True) if g is not None}


def _try_float64(
    model: Any, inputs: tuple[Any, ...], backward: bool
) -> tuple[Results, str | None]:
    """The reference, or nothing and why the model cannot compute in float64."""
    try:
        return _run(model, inputs, backward, torch.float64), None
    except Exception as error:  # whatever a model says that expects another dtype
        said = str(error).splitlines() or [""]
        return {}, f"{type(error).__name__}: {said[0]}"


def _map(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map(v, change) for v in value)
    return value


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _tensors(item, f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(item, f"{name}[{i}]")


def _compare_int8(stock: Results, ours: Results) -> Iterator[Comparison]:
    """Int8 layers beside their dequantized weights: the switch has its own bound."""
    for name in stock | ours:
        if name not in stock or name not in ours:
            who = "stock" if name in stock else "acceleration"
            size = (stock | ours)[name].numel()
            yield Comparison(name, size, False, False, note=f"only {who} gives it")
            continue
        s, o = stock[name], ours[name]
        is_equal = _equal(s, o)
        if is_equal or s.shape != o.shape or not s.is_floating_point():
            yield Comparison(name, s.numel(), is_equal, passes=is_equal)
            continue
        differ = (s != o) & ~(s.isnan() & o.isnan())
        signal = s.double()[s.isfinite()].square().sum().item()
        noise = (o.double() - s.double())[differ].square().sum().item()
        passes, note = _int8_verdict(signal, noise)
        yield Comparison(name, s.numel(), False, passes, note=note)


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


def _compare(
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
    for name in stock | our:
        if name not in stock or name not in our:
            who = "stock" if name in stock else "acceleration"
            size = (stock | our)[name].numel()
            yield Comparison(name, size, False, False, note=f"only {who} gives it")
            continue
        s, o, reference = stock[name], our[name], exact.get(name)
        is_equal = _equal(s, o)
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
            yield _judge(name, *runs, reference, _ulp(s), numerics)
    if small:
        ulp = max(_ulp(s) for _, s, *_ in small)
        reference, *pooled = _pool(small)
        n, n_both = len(stocks), len(stocks) + len(ours)
        runs = pooled[:n], pooled[n:n_both], pooled[n_both:]
        yield _judge(f"{len(small)} small tensors", *runs, reference, ulp, numerics)


def _strides(t: Tensor) -> tuple[int, ...] | None:
    return t.stride() if t.layout is torch.strided else None


def _is_judged(a: Tensor, b: Tensor) -> bool:
    """Whether these may differ at all: floating results of one kind."""
    return a.is_floating_point() and a.shape == b.shape and a.dtype == b.dtype


def _equal(a: Tensor, b: Tensor) -> bool:
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


def _ulp(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps


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
    same_kind = _equal(stock[~finite], our[~finite])
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
