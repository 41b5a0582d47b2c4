"""What a checkpoint holds of a tuner: plain types and tensors."""

from __future__ import annotations

from array import array
from math import isfinite
from typing import Any

from pai_torchacc.adaptive_lr.clipping import Clipping
from pai_torchacc.adaptive_lr.tuner import N_NUMBERS, Tuner

_VERSION = 2
"""Of the format; its numbers are those of csrc/ops/learning_rate/learning_rate.h."""
_HIGHEST = 1e10
"""More than any multiplier."""
_COUNTS = ("n_missing", "n_same", "n_of_others", "n_turns", "n_sharing")


def state_of(tuner: Tuner) -> dict[str, Any]:
    """What a tuner has learnt."""
    tuner.see_who_shares()
    return {
        "version": _VERSION,
        "numbers": list(tuner.numbers),
        "multiplier": tuner.multiplier,
        "mode": tuner.mode,
        "reason": tuner.reason,
        "references": list(tuner.references),
        "n_steps": tuner.n_steps,
        "counts": [getattr(tuner, name) for name in _COUNTS],
        "clips": tuner.clipping.is_seen,
        "last_loss": tuner.last_loss,
        "latest": tuner.latest(),
        "begin": _copies(tuner.begin),
    }


def _copies(tensors: Any) -> list[Any] | None:
    return None if tensors is None else [t.clone() for t in tensors]


def _finite(numbers: Any) -> list[float]:
    found = [float(n) for n in numbers]
    if not all(map(isfinite, found)):
        raise ValueError("not finite")
    return found


_ATTRIBUTES = {
    "numbers": lambda found: array("d", _finite(found)),
    "multiplier": lambda found: _finite([found])[0],
    "references": _finite,
    "n_steps": int,
    "last_loss": lambda found: None if found is None else float(found),
    "begin": _copies,
}
"""How parts are read that are attributes of a tuner by the same names."""
_OTHERS = {
    "counts": lambda found: dict(zip(_COUNTS, map(int, found), strict=True)),
    "clips": bool,
    "latest": lambda found: _finite(found or []),
    "mode": lambda found: found,
    "reason": lambda found: found,
}


def read(state: Any) -> dict[str, Any]:
    """The parts of a state, for ``go_on``; ValueError where this is no such state."""
    if not isinstance(state, dict) or state.get("version") != _VERSION:
        raise ValueError("adaptive_lr: a state of another version")
    try:
        made = {k: make(state[k]) for k, make in (_ATTRIBUTES | _OTHERS).items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as e:
        raise ValueError(f"adaptive_lr: a damaged state: {e!r}") from None
    if (
        len(made["numbers"]) != N_NUMBERS
        or len(made["latest"]) not in (0, 3)
        or not 0 < made["multiplier"] < _HIGHEST
    ):
        raise ValueError("adaptive_lr: a state of other numbers")
    return made


def go_on(tuner: Tuner, made: dict[str, Any]) -> None:
    """Go on from there; policies other than "auto" stay what they are."""
    if not tuner.is_served:
        return
    vars(tuner).update({name: made[name] for name in _ATTRIBUTES} | made["counts"])
    latest = made["latest"]
    tuner.used, tuner.n_sharing = [], max(tuner.n_sharing, 1)
    tuner.clipping = Clipping()
    tuner.clipping.is_seen = made["clips"]
    tuner.awaited = (latest[0], [1.0, 0.0], [0.0, 1.0]) if latest else None
    tuner.sums = latest[1:]
    tuner.roots.clear()
    tuner.moments.clear()
    if tuner.options.policy == "auto" and made["mode"] in ("loss", "loss_free"):
        tuner.mode, tuner.reason = made["mode"], made["reason"]
