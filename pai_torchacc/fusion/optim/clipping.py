"""``torch.nn.utils.clip_grad_norm_``: its two halves as one call each.

Torch's function calls two of its module by name, one for the norm of all gradients and
one to multiply them. The stand-ins serve gradients of float32 on the CPU, with stock's
bits: the norm is added up in torch's own order, and where no gradient is too long,
multiplying by 1 is left out. ``clip_grad_value_`` calls ``_foreach_clamp_min_`` and
``_foreach_clamp_max_``, which are overridden for every caller.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled_alone

OPERATOR = "clip_grad_norm"

# Whole vectors of 32 bytes, with any number of elements behind them, and without.
_SIZES = (*range(1, 25), 4101)


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    from torch.nn.utils import clip_grad

    for name, make in (("_get_total_norm", _norm), ("_clip_grads_with_norm_", _scale)):
        if name in vars(clip_grad):
            ledger.set_attribute(clip_grad, name, make(c, vars(clip_grad)[name]))


def _norm(c: Any, original: Any) -> Any:
    import torch

    is_compiling = torch.compiler.is_compiling
    accelerated = c.clip_total_norm

    @not_compiled_alone
    @functools.wraps(original)
    def _get_total_norm(
        tensors: Any,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> Any:
        try:
            found = None
            if not is_compiling():
                found = accelerated(tensors, norm_type)
            if found is None or (error_if_nonfinite and not math.isfinite(found)):
                return original(tensors, norm_type, error_if_nonfinite, foreach)
            if c.shadow_due(OPERATOR):
                return _checked_norm(c, found, lambda: original(tensors, norm_type))
            return found
        except BaseException as error:
            hide(error)
            raise

    _get_total_norm.stands_for = original
    return _get_total_norm


def _checked_norm(c: Any, found: Any, stock: Any) -> Any:
    from pai_torchacc import _host

    with _host.muted():
        expected = stock()
    agrees = c.shadow_settle(OPERATOR, (found,), (expected,), 0, 0)
    return found if agrees else expected


def _scale(c: Any, original: Any) -> Any:
    import torch

    is_compiling = torch.compiler.is_compiling
    accelerated = c.clip_scale

    @not_compiled_alone
    @functools.wraps(original)
    def _clip_grads_with_norm_(
        parameters: Any,
        max_norm: float,
        total_norm: Any,
        foreach: bool | None = None,
    ) -> None:
        try:
            if is_compiling():
                return original(parameters, max_norm, total_norm, foreach)
            copies = None
            if c.shadow_due(OPERATOR) and isinstance(parameters, list):
                copies = _Copies(c, parameters)
            if not accelerated(parameters, max_norm, total_norm):
                return original(parameters, max_norm, total_norm, foreach)
            if copies:
                copies.settle(lambda p: original(p, max_norm, total_norm, foreach))
            return None
        except BaseException as error:
            hide(error)
            raise

    _clip_grads_with_norm_.stands_for = original
    return _clip_grads_with_norm_


class _Copies:
    """Gradients as they were, for a shadow check."""

    def __init__(self, c: Any, parameters: list[Any]):
        import torch

        self._c = c
        self._grads = [p.grad for p in parameters if p.grad is not None]
        self._twins = []
        for grad in self._grads:
            twin = torch.nn.Parameter(torch.empty_like(grad), requires_grad=False)
            twin.grad = grad.detach().clone()
            self._twins.append(twin)

    def settle(self, stock: Any) -> None:
        """Compare, and put stock's numbers in place where ours differ."""
        import torch

        from pai_torchacc import _host

        with _host.muted():
            stock(self._twins)
        expected = tuple(twin.grad for twin in self._twins)
        if not self._c.shadow_settle(OPERATOR, tuple(self._grads), expected, 0, 0):
            with torch.no_grad():
                for ours, theirs in zip(self._grads, expected, strict=True):
                    ours.copy_(theirs)


def prove(c: Any, torch: Any) -> dict[str, str]:
    """By operator, why it must not run with this torch; empty when all is well."""
    from torch.nn.utils import clip_grad

    try:
        get_norm = _torchs(clip_grad._get_total_norm)
        scale = _torchs(clip_grad._clip_grads_with_norm_)
        if all(_agrees(c, torch, get_norm, scale, most) for most in (1e9, 0.3)):
            return {}
        return {OPERATOR: "torch's own clipping gives other bits"}
    except (AttributeError, TypeError, RuntimeError) as error:
        return {OPERATOR: f"torch's own clipping could not be run: {error}"}


def _torchs(function: Any) -> Any:
    """Beneath a stand-in of ours."""
    return getattr(function, "stands_for", function)


def _agrees(c: Any, torch: Any, get_norm: Any, scale: Any, most: float) -> bool:
    generator = torch.Generator("cpu").manual_seed(0)
    ours, stock = [], []
    for n in _SIZES:
        x = torch.randn(n, generator=generator, dtype=torch.float32, device="cpu")
        for params in (ours, stock):
            params.append(torch.nn.Parameter(x.clone()))
            params[-1].grad = x.clone()
    lists = [[p.grad] for p in stock] + [[p.grad for p in stock]]
    totals = [(c.clip_total_norm(grads, 2.0), get_norm(grads)) for grads in lists]
    total = totals[-1][1]
    scale(stock, most, total)
    return (
        all(a is not None and torch.equal(a, b) for a, b in totals)
        and c.clip_scale(ours, most, total)
        and all(
            torch.equal(a.grad, b.grad) and a.grad._version == b.grad._version
            for a, b in zip(ours, stock, strict=True)
        )
    )
