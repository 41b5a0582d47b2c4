"""Numbers under contract: stock and accelerated results, both against float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _switch, disabled

SMALL = 1000
"""Tensors with fewer elements are held to the looser factor throughout."""
POOLED = 100
"""Tensors with fewer elements are too few for statistics and are judged together."""
INCOMPARABLE = 0.05
"""Relative distance of stock to float64 from which they did not compute the same."""


@dataclass(frozen=True)
class Comparison:
    """One result. Errors are against float64; None where that could not follow."""

    name: str
    n_elements: int
    is_equal: bool
    stock_rms: float | None
    our_rms: float | None
    stock_max: float | None
    our_max: float | None
    passes: bool


class Verification:
    """What :func:`pai_torchacc.verify` found; true when every tensor passes."""

    def __init__(self, rows: list[Comparison], numerics: str):
        self.rows = rows
        self.numerics = numerics

    def __bool__(self) -> bool:
        return all(row.passes for row in self.rows)

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
                "" if r.passes else "FAILS",
            )
            for r in self.rows
        ]
        widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        verdict = "kept" if self else "BROKEN"
        return "\n".join([*lines, f"contract {self.numerics!r}: {verdict}"])


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def verify(model: Any, inputs: tuple[Any, ...], backward: bool = True) -> Verification:
    """See :func:`pai_torchacc.verify`."""
    numerics = _switch.current().numerics
    state = torch.get_rng_state()
    try:
        with disabled():
            stock = _run(model, inputs, backward, None)
        torch.set_rng_state(state)
        ours = _run(model, inputs, backward, None)
        torch.set_rng_state(state)
        with disabled():
            exact = _try_float64(model, inputs, backward)
    finally:
        torch.set_rng_state(state)
    return Verification(list(_compare(stock, ours, exact, numerics)), numerics)


Results = dict[str, Tensor]


def _run(
    model: Any, inputs: tuple[Any, ...], backward: bool, dtype: torch.dtype | None
) -> Results:
    """Results of a copy of the model, in another floating type if asked."""
    if isinstance(model, torch.nn.Module):
        model = copy.deepcopy(model)
        if dtype is not None:
            model = model.to(dtype)
    taken = [_map(i, lambda t: _fresh(t, dtype)) for i in inputs]
    with torch.set_grad_enabled(backward):
        output = model(*taken)
    results = {f"output{name}": t for name, t in _tensors(output)}
    if backward:
        results |= _gradients(model, taken, list(results.values()))
    return {name: t.detach() for name, t in results.items()}


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


def _try_float64(model: Any, inputs: tuple[Any, ...], backward: bool) -> Results:
    """The reference; nothing where the model cannot compute in float64."""
    try:
        return _run(model, inputs, backward, torch.float64)
    except (RuntimeError, TypeError, NotImplementedError):
        return {}


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


def _compare(
    stock: Results, ours: Results, exact: Results, numerics: str
) -> Iterator[Comparison]:
    small: list[tuple[Tensor, Tensor, Tensor]] = []
    for name, s in stock.items():
        o = ours[name]
        is_equal = _equal(s, o)
        reference = exact.get(name)
        if is_equal or numerics == "exact" or not s.is_floating_point():
            yield Comparison(name, s.numel(), is_equal, *[None] * 4, passes=is_equal)
        elif reference is None or not _is_comparable(s, reference):
            close = torch.allclose(s, o, rtol=1e-3, atol=1e-5, equal_nan=True)
            yield Comparison(name, s.numel(), False, *[None] * 4, passes=close)
        elif s.numel() < POOLED:
            small.append((s, o, reference))
        else:
            yield _judge(name, s, o, reference)
    if small:
        yield _judge(f"{len(small)} small tensors", *_pool(small))


def _equal(a: Tensor, b: Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def _is_comparable(stock: Tensor, reference: Tensor) -> bool:
    """Random operators may draw other numbers in float64."""
    scale = reference.double().norm()
    distance = (stock.double() - reference).norm()
    return bool(distance <= INCOMPARABLE * scale) or bool(scale == 0)


def _pool(small: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Many small tensors as one, each scaled to root mean square 1."""
    scales = [r.double().pow(2).mean().sqrt().clamp_min(1e-300) for _, _, r in small]
    return tuple(  # type: ignore[return-value]
        torch.cat(
            [(t[i].double() / s).flatten() for t, s in zip(small, scales, strict=True)]
        )
        for i in range(3)
    )


def _judge(name: str, stock: Tensor, ours: Tensor, reference: Tensor) -> Comparison:
    """DESIGN's level ``close``."""
    ulp = 2.0**-23
    finite = torch.isfinite(stock) & torch.isfinite(ours)
    same_kind = _equal(stock[~finite], ours[~finite])
    r = reference[finite].double()
    s, o = ((t[finite].double() - r).abs() for t in (stock, ours))
    stock_rms, our_rms = (math.sqrt(float(e.pow(2).mean())) for e in (s, o))
    stock_max, our_max = (float(e.max()) for e in (s, o))
    rms_factor = 2 if stock.numel() >= SMALL else 3
    allowed_rms = rms_factor * stock_rms + 2 * ulp * float(r.pow(2).mean().sqrt())
    allowed_max = 3 * stock_max + 2 * ulp * float(r.abs().max())
    passes = same_kind and our_rms <= allowed_rms and our_max <= allowed_max
    return Comparison(
        name, stock.numel(), False, stock_rms, our_rms, stock_max, our_max, passes
    )
