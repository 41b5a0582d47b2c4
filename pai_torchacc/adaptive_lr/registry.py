"""Which optimizers there are, and the tuner of each.

Optimizers register where they are made, and those that exist when the switch is thrown
then, so that no backward pass reaches one that is not known. Nothing keeps them alive.
"""

from __future__ import annotations

import functools
import gc
from dataclasses import replace
from typing import Any
from weakref import ReferenceType, ref

from torch.optim import Optimizer

from pai_torchacc._config import RateOptions
from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr.tuner import Tuner
from pai_torchacc.adaptive_lr.watching import watch

_defaults = RateOptions()
_tuners: dict[int, tuple[ReferenceType[Any], Tuner]] = {}
"""By id; each step looks here, where WeakIdKeyDictionary would take a microsecond."""
_NONE = (lambda: None), None


def install(ledger: Ledger) -> None:
    """Register those that exist, and from now on those that are made."""
    ledger.set_attribute(Optimizer, "__init__", _registering())
    for optimizer in _existing():
        tuner_of(optimizer)


def _existing() -> list[Any]:
    """Optimizers that have been made: each refers to its class.

    A list of all objects would hold the tuples, too, that other threads are making, and
    Python does not finish a tuple that somebody else holds.
    """
    classes: list[type] = [Optimizer]
    for cls in classes:
        classes += type.__subclasses__(cls)
    # not isinstance(), which asks objects that are none of ours for their class
    return [
        found
        for found in gc.get_referrers(*classes)
        if issubclass(type(found), Optimizer) and "param_groups" in vars(found)
    ]


def _registering() -> Any:
    original = Optimizer.__init__

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(self, *args, **kwargs)
        except BaseException as error:
            hide(error)
            raise
        if "param_groups" in vars(self):
            tuner_of(self)

    return make


def options_are(options: RateOptions) -> None:
    """Of optimizers that have none of their own."""
    global _defaults
    before, _defaults = _defaults, options
    for reference, tuner in _pairs():
        optimizer = reference()
        if optimizer is None or tuner.own_options is not None:
            continue
        if replace(before, verbose=options.verbose) == options:
            tuner.options = options
        else:
            begin_anew(optimizer)


def begin_anew(optimizer: Any, own: RateOptions | None = None) -> Tuner:
    """Forget what was learnt about an optimizer, which may get options of its own."""
    before, key = known_tuner(optimizer), id(optimizer)
    own = own or (before.own_options if before is not None else None)

    def gone(reference: ReferenceType[Any]) -> None:
        if _tuners.get(key, (None,))[0] is reference:
            _tuners.pop(key, None)  # others may have emptied it meanwhile

    tuner = Tuner(optimizer, own or _defaults)
    tuner.own_options = own
    _tuners[key] = ref(optimizer, gone), tuner
    watch(tuner)
    if before is not None:
        before.retire()
    return tuner


def forget() -> None:
    """All optimizers, and the options that they had."""
    before = _pairs()
    _tuners.clear()
    for _, tuner in before:
        tuner.retire()


def tuner_of(optimizer: Any) -> Tuner:
    """The one of an optimizer, made where there is none yet."""
    return known_tuner(optimizer) or begin_anew(optimizer)


def known_tuner(optimizer: Any) -> Tuner | None:
    """The one of an optimizer, if there is one."""
    reference, tuner = _tuners.get(id(optimizer), _NONE)
    return tuner if reference() is optimizer else None


def optimizers() -> list[Any]:
    """Those that are known and still there."""
    return [found for reference, _ in _pairs() if (found := reference()) is not None]


def _pairs() -> list[tuple[ReferenceType[Any], Tuner]]:
    return list(_tuners.values())  # in one go: other threads may make optimizers
