"""The numerics level ``close``, as tests hold it, and that of bfloat16.

Against float64, ours may err by m times stock's own error on the same inputs plus two
units in the last place of the result's size: m = 2 for the root mean square, 3 for the
maximum and for tensors under 1,000 elements. Tensors under 100 elements are too few for
statistics and are pooled over 32 seeds, others that come with them over four.
Non-finite results agree in place and kind. Where operands are rounded to bfloat16,
stock's error is that of the same operators under its autocast.

Written apart from ``pai_torchacc.verification`` so that neither covers for the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from pai_torchacc import disabled

SMALL, POOLED, SEEDS, SEEDS_OF_LARGE = 1000, 100, 32, 4

Case = Callable[[torch.dtype], dict[str, Tensor]]
"""Computes named results in a dtype, drawing its inputs with :func:`draw`."""


def draw(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Normal numbers that are the same in every dtype."""
    return (scale * torch.randn(*shape)).to(dtype)


EXTREMES = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, 3e38, -3e38)


def draw_with_extremes(*sizes: int) -> Tensor:
    """Normal numbers, the same for the same sizes, of which up to half are extreme."""
    torch.manual_seed(sum(sizes))
    x = torch.randn(sizes)
    n = min(len(EXTREMES), x.numel() // 2)
    x.view(-1)[:n] = torch.tensor(EXTREMES)[:n]
    return x


def hold(case: Case, *, bf16: bool = False) -> None:
    """Run a case by stock, accelerated and in float64, and compare.

    To be called with acceleration on. Small results are drawn from more seeds. What
    does not depend on acceleration is computed once for each case: as long as a case
    lives, its results of other rows are held against the same.
    """
    runs = [_runs(case, 0, bf16)]
    if any(t.numel() < POOLED for t in runs[0][0].values()):
        runs += [_runs(case, seed, bf16) for seed in range(1, SEEDS)]
    for name, result in runs[0][0].items():
        n = SEEDS if result.numel() < POOLED else SEEDS_OF_LARGE
        judge(name, *([run[i][name] for run in runs[:n]] for i in range(3 + bf16)))


Results = dict[str, Tensor]

_others: WeakKeyDictionary[Case, dict[tuple[int, bool], list[Results]]]
_others = WeakKeyDictionary()


def forget() -> None:
    """Let go of results, which may lie in the memory pool and keep it from closing."""
    _others.clear()


def _runs(case: Case, seed: int, bf16: bool) -> list[Results]:
    """Accelerated, by stock and in float64; with bf16 also under autocast."""
    ours = _run(case, seed, torch.float32)
    known = _others.setdefault(case, {})
    if (seed, bf16) not in known:
        with disabled():
            known[seed, bf16] = [
                _run(case, seed, torch.float32),
                _run(case, seed, torch.float64),
                *([_run(case, seed, torch.float32, bf16)] if bf16 else []),
            ]
    return [ours, *known[seed, bf16]]


def _run(case: Case, seed: int, dtype: torch.dtype, bf16: bool = False) -> Results:
    torch.default_generator.manual_seed(seed)  # no GPU: manual_seed notes its caller
    with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
        return {name: t.detach() for name, t in case(dtype).items()}


def judge(
    name: str,
    ours: list[Tensor],
    stock: list[Tensor],
    exact: list[Tensor],
    lowered: list[Tensor] | None = None,
) -> None:
    """Hold one result, of one seed or pooled, to the contract."""
    for o, s in zip(ours, stock, strict=True):
        assert o.shape == s.shape, name
        assert o.dtype == s.dtype, name
        assert o.stride() == s.stride(), name
        if o.isfinite().all() and s.isfinite().all():
            continue
        same_kind = torch.where(o.isfinite(), 0.0, o.double())
        torch.testing.assert_close(
            same_kind,
            torch.where(s.isfinite(), 0.0, s.double()),
            rtol=0,
            atol=0,
            equal_nan=True,
            msg=f"{name}: non-finite results in other places or of other kind",
        )
    sizes = [t.numel() for t in stock]
    if min(sizes, default=0) == 0:
        return
    scales = [_rms(e) if len(exact) > 1 else 1.0 for e in exact]
    error_of_ours = _errors(ours, exact, scales)
    error_of_stock = _errors(lowered or stock, exact, scales)
    result = torch.cat(
        [e.double().flatten() / k for e, k in zip(exact, scales, strict=True)]
    )
    result = result[result.isfinite()]
    ulp = 2 * torch.finfo(stock[0].dtype).eps
    m = 3 if min(sizes) < SMALL else 2
    allowed = m * _rms(error_of_stock) + ulp * _rms(result)
    assert _rms(error_of_ours) <= allowed, f"{name}: root mean square error"
    allowed = 3 * float(error_of_stock.max()) + ulp * float(result.abs().max())
    assert float(error_of_ours.max()) <= allowed, f"{name}: largest error"


def _errors(got: list[Tensor], exact: list[Tensor], scales: list[float]) -> Tensor:
    parts = []
    for g, e, scale in zip(got, exact, scales, strict=True):
        errors = (g.double() - e.double()).abs() / scale
        finite = errors.isfinite()
        parts.append(errors.flatten() if finite.all() else errors[finite])
    return torch.cat(parts)


def _rms(t: Tensor) -> float:
    return max(float(t.double().pow(2).mean().sqrt()), 1e-300)


def said(call: Callable[[], Any]) -> Any:
    """What a call gives; or what it raises, and the first line of why."""
    try:
        return call()
    except Exception as error:
        return f"{type(error)} {error}".splitlines()[0]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same, the signs of zeros included.

    NaNs are one value: which of them torch gives depends on whether an element falls
    into a vector or into the tail behind it.
    """
    if a.shape != b.shape or a.dtype != b.dtype or a.stride() != b.stride():
        return False
    a, b = a.detach(), b.detach()
    if a.is_complex():
        a, b = (torch.view_as_real(t.resolve_conj().contiguous()) for t in (a, b))
    if not a.is_floating_point():
        return bool(torch.equal(a, b))
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    same = a.contiguous().view(width) == b.contiguous().view(width)
    return bool((same | (a.isnan() & b.isnan())).all())


def exactly(ours: Any, stock: Any, where: str = "result") -> None:
    """Fail unless two nested results are the same, to the bit and the stride."""
    assert type(ours) is type(stock), where
    if isinstance(stock, Tensor):
        assert ours.requires_grad == stock.requires_grad, where
        assert ours.layout == stock.layout, where
        if stock.layout is not torch.strided:
            torch.testing.assert_close(ours, stock, rtol=0, atol=0, equal_nan=True)
        elif not stock.is_meta:
            assert same_bits(ours, stock), f"{where}:\n{ours}\n{stock}"
    elif isinstance(stock, dict):
        assert len(ours) == len(stock), where
        for (a, mine), (b, theirs) in zip(ours.items(), stock.items(), strict=True):
            assert a is b or isinstance(a, Tensor) or a == b, where
            exactly(mine, theirs, f"{where}[{b if isinstance(b, str) else '...'}]")
    elif isinstance(stock, (list, tuple)):
        assert len(ours) == len(stock), where
        for i, (mine, theirs) in enumerate(zip(ours, stock, strict=True)):
            exactly(mine, theirs, f"{where}[{i}]")
    elif isinstance(stock, float) and math.isnan(stock):
        assert math.isnan(ours), where
    else:
        assert ours == stock, where
