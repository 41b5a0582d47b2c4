"""By how much gradients were scaled between backward and step, as clipping does.

The size that it had is known of the smallest gradient alone; once gradients have been
changed, of all. (Versions would not tell: ``.data`` and scalers leave no trace there.)
"""

from __future__ import annotations

from itertools import chain, islice
from math import isfinite, sqrt
from typing import Any

from pai_torchacc.adaptive_lr.update_rules import sum_of

_MOST, _ROUNDING = 1e9, 1e-3
_ALL = slice(None)

Versions = list[tuple[int, int] | None]


def params_of(optimizer: Any) -> list[Any]:
    """Of all groups."""
    return [p for group in optimizer.param_groups for p in group["params"]]


def gradients_of(optimizer: Any) -> list[Any]:
    """Of all parameters, None where there is none."""
    return [p.grad for group in optimizer.param_groups for p in group["params"]]


def versions_of(gradients: list[Any]) -> Versions:
    """What changes when gradients do."""
    try:
        return [None if g is None else (id(g), g._version) for g in gradients]
    except RuntimeError:  # made in inference mode: without versions
        return [None if g is None else (id(g), 0) for g in gradients]


class Clipping:
    """What is known of one optimizer's gradients."""

    def __init__(self) -> None:
        self.is_seen = False
        self._measured: tuple[slice, float] | None = None
        """After a backward pass: which parameters, and their squares."""
        self._by_size: list[slice] = []

    def note(self, optimizer: Any) -> None:
        """Measure gradients that a backward pass has just left."""
        params = params_of(optimizer)
        if len(params) != len(self._by_size):
            sizes = [p.numel() for p in params]
            order = sorted(range(len(params)), key=sizes.__getitem__)
            self._by_size = [slice(i, i + 1) for i in order]
        self._measured = None
        for place in (_ALL,) if self.is_seen else self._by_size:
            squares = _squares(params[place], 1.0)
            if squares != 0:
                if squares is not None and isfinite(squares):
                    self._measured = place, squares
                return

    def forget(self) -> None:
        """The gradients are gone."""
        self._measured = None

    def is_zero_now(self, optimizer: Any) -> bool:
        """Whether what was measured has been set to zero."""
        if self._measured is None:
            return False
        params = _params_at(optimizer, self._measured[0])
        has_any = any(p.grad is not None for p in params)
        return has_any and _squares(params, 1.0) == 0

    def kept(self, optimizer: Any, scale: float, loss_scale: float) -> float:
        """The share that is left of gradients times ``scale``; 1 if unknown.

        The measure is taken once, as they are about to be stepped by.
        ``loss_scale`` is what the loss was multiplied by: a scaler divides gradients by
        it, or leaves that to ``scale``.
        """
        measured, self._measured = self._measured, None
        if measured is None:
            return 1.0
        place, squares = measured
        now = _squares(_params_at(optimizer, place), scale)
        kept = loss_scale * sqrt(now / squares) if now else 1.0
        if not 1 / _MOST < kept < _MOST:
            return 1.0
        self.is_seen = self.is_seen or abs(kept - 1) > _ROUNDING
        return kept


def _params_at(optimizer: Any, place: slice) -> list[Any]:
    params = chain.from_iterable(group["params"] for group in optimizer.param_groups)
    return list(islice(params, place.start, place.stop))


def _squares(params: list[Any], scale: float) -> float | None:
    """Of their gradients' elements, those that there are."""
    grads = [grad for p in params if (grad := p.grad) is not None]
    return sum_of([grads, None, None], scale, None) if grads else 0.0
