"""Checkpoints and copies: what a tuner has learnt travels with its optimizer.

In a state dict it is one entry beside ``state`` and ``param_groups``, which torch's own
``load_state_dict`` does not look at; in what copies and pickles are made from, one
beside those too, with the options that the optimizer has of its own. Both are of plain
types and tensors, and load with and without this package.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import asdict
from typing import Any

from pai_torchacc._config import RateOptions
from pai_torchacc._ledger import Ledger
from pai_torchacc._options import rate_checked
from pai_torchacc.adaptive_lr.registry import begin_anew, known_tuner, tuner_of
from pai_torchacc.adaptive_lr.state import go_on, read, state_of

log = logging.getLogger("pai_torchacc")

ENTRY = "pai_torchacc.adaptive_lr"


def install(ledger: Ledger) -> None:
    """Save and load it from now on."""
    from torch.optim import Optimizer

    for name, ours in {
        "state_dict": _state_dict,
        "load_state_dict": _load_state_dict,
        "__getstate__": _getstate,
        "__setstate__": _setstate,
    }.items():
        original = vars(Optimizer)[name]
        ledger.set_attribute(Optimizer, name, _around(original, ours))


def _around(original: Any, ours: Any) -> Any:
    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs)

    return stand_in


def _state_dict(original: Any, optimizer: Any) -> dict[str, Any]:
    made: dict[str, Any] = original(optimizer)
    tuner = known_tuner(optimizer)
    if tuner is not None and tuner.n_steps and isinstance(made, dict):
        made[ENTRY] = state_of(tuner)
    return made


def _load_state_dict(original: Any, optimizer: Any, state_dict: Any) -> None:
    is_ours = isinstance(state_dict, dict) and ENTRY in state_dict
    made = read(state_dict[ENTRY]) if is_ours else None  # refuses what is damaged
    original(optimizer, state_dict)
    if made is None:
        begin_anew(optimizer)
    else:
        go_on(tuner_of(optimizer), made)


def _getstate(original: Any, optimizer: Any) -> dict[str, Any]:
    made: dict[str, Any] = original(optimizer)
    tuner = known_tuner(optimizer)
    if tuner is None or not isinstance(made, dict):
        return made
    own = tuner.own_options
    if own or tuner.n_steps:
        options = asdict(own) if own else None
        made[ENTRY] = {"options": options, "state": state_of(tuner)}
    return made


def _setstate(original: Any, optimizer: Any, state: Any) -> None:
    copied = state.get(ENTRY) if isinstance(state, dict) else None
    original(optimizer, state)
    vars(optimizer).pop(ENTRY, None)
    if "param_groups" not in vars(optimizer):
        return
    tuner_of(optimizer)  # backward passes look at it from now on
    if copied is not None:
        _go_on(optimizer, copied)


def _go_on(optimizer: Any, copied: Any) -> None:
    """As its original; a copy of another version's begins anew."""
    try:
        options, state = copied["options"], copied["state"]
        if options is not None:
            begin_anew(optimizer, rate_checked(RateOptions(**options)))
        if state is not None:
            go_on(tuner_of(optimizer), read(state))
    except (KeyError, TypeError, ValueError) as error:
        log.warning("adaptive_lr begins anew with a copied optimizer: %s", error)
        begin_anew(optimizer)
