"""Options of the switches, checked: errors name the option and what it may be.

Each function returns its argument in the form that a Config has. It raises TypeError
for a wrong type and ValueError for a wrong value.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from pai_torchacc import _features, _host, calibration
from pai_torchacc._config import (
    FILLS,
    Config,
    DdpOptions,
    PoolOptions,
    RateOptions,
    WatchOptions,
)

NUMERICS = calibration.LEVELS
DEVICES = ("cpu", "cuda")
COMMUNICATIONS = ("none", "bf16", "auto")
"""How ``tune_ddp`` may have gradients sent."""

_MOST_BYTES = (1 << 62) - 1
_MOST_EVENTS = 1 << 28
_MOST_SECONDS = (1 << 31) - 1


def names_checked(features: Iterable[str]) -> tuple[str, ...]:
    """Names of features, in canonical order."""
    asked = list(features)
    for name in asked:
        if not isinstance(name, str):
            kind = type(name).__name__
            hint = "; a decorator is @pai_torchacc.enable()" if callable(name) else ""
            raise TypeError(f"feature names are strings, not {kind}: {name!r}{hint}")
        if name not in _features.names():
            known = ", ".join(_features.names())
            raise ValueError(f"unknown feature {name!r}; there are: {known}")
    return tuple(name for name in _features.names() if name in asked)


def operators_checked(
    names: Iterable[str] | None, option: str
) -> frozenset[str] | None:
    """Operator names as the report spells them, with their ``_backward``; None: all."""
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        kind = type(names).__name__
        raise TypeError(f"{option} is a collection of operator names, not {kind}")
    asked = list(names)
    known = operator_names()
    for name in asked:
        if not isinstance(name, str):
            raise TypeError(f"{option}: operator names are strings, not {name!r}")
        if known and name not in known:
            raise ValueError(
                f"{option}: unknown operator {name!r}; there are: {', '.join(known)}"
            )
    backward = {f"{name}_backward" for name in asked}
    return backward.intersection(known).union(asked)


def check_something_left(config: Config) -> None:
    """Raise ValueError where the options together leave no operator."""
    left = set(operator_names())
    if left and not config.wanted(left):
        raise ValueError("include, exclude and ops leave no operator to accelerate")


def operator_names() -> list[str]:
    """All operators, or nothing where the extension is missing."""
    c = _host.compiled()
    return [name for name, _, _ in c.operators()] if c else []


def numerics_checked(level: str) -> str:
    """One of the numerics levels."""
    return _one_of(level, "numerics", NUMERICS)


def verify_checked(every: int) -> int:
    """How many calls one shadow check stands for; 0 for none."""
    _check_type(every, int, "verify", "an integer")
    if not 0 <= every < 1 << 63:
        raise ValueError(f"verify={every}; it is 0, or one check in so many calls")
    return every


def pool_checked(options: PoolOptions) -> PoolOptions:
    """Options of the memory pool."""
    if options.device is not None:
        device_checked(options.device)
    _check_count(options.reserve, "reserve", 0, _MOST_BYTES)
    _check_count(options.history, "history", 0, _MOST_EVENTS)
    if options.cap is not None:
        _check_count(options.cap, "cap", 1, _MOST_BYTES)
        if options.reserve > options.cap:
            raise ValueError(
                f"reserve={options.reserve} is more than cap={options.cap} allows"
            )
    c = _host.compiled()
    _one_of(options.policy, "policy", c.pool_policies() if c else ())
    _one_of(options.fill, "fill", FILLS)
    _check_trim(options.trim)
    return options


def _check_trim(trim: Any) -> None:
    if isinstance(trim, str):
        if trim not in ("auto", "never"):
            raise ValueError(f"trim={trim!r}; it is 'auto', 'never', or idle seconds")
        return
    _check_type(trim, int, "trim", "a string or an integer")
    _check_count(trim, "trim", 1, _MOST_SECONDS, "idle seconds are")


def rate_checked(options: RateOptions) -> RateOptions:
    """Options of the adaptive learning rate."""
    _one_of(options.policy, "policy", ("auto", "loss_free", "off"))
    if options.floor is not None:
        _check_finite(options.floor, "floor")
    _check_finite(options.max_growth, "max_growth")
    if options.max_growth <= 1:
        raise ValueError(f"max_growth={options.max_growth}; it is more than 1")
    _check_type(options.verbose, bool, "verbose", "a bool")
    return options


def count_checked(value: int, option: str) -> int:
    """A number of bytes, 0 or more."""
    _check_count(value, option, 0, _MOST_BYTES)
    return value


def ddp_checked(options: DdpOptions) -> DdpOptions:
    """Options of ``tune_ddp``."""
    _one_of(options.comm, "comm", COMMUNICATIONS)
    return options


def watch_checked(options: WatchOptions) -> WatchOptions:
    """Options of ``watch_ranks``."""
    _check_finite(options.after, "after")
    if options.after <= 0:
        raise ValueError(f"after={options.after}; it is more than 0 seconds")
    return options


def device_checked(device: object) -> str:
    """The kind of a device that there are pools for."""
    kind = getattr(device, "type", device)
    if not isinstance(kind, str):
        raise TypeError(
            f"device is a string or torch.device, not {type(device).__name__}"
        )
    kind, colon, index = kind.partition(":")
    if colon and not index.isdecimal():
        raise ValueError(f"device={str(device)!r}; after the colon comes a number")
    if kind not in DEVICES:
        raise ValueError(f"device={str(device)!r}; there are: {', '.join(DEVICES)}")
    return kind


def training_checked(training: str | None) -> str | None:
    """What ``enable_model_quantization`` may be asked to do for training."""
    return _one_of(training, "training", (None, "bf16"))


def parallelism_checked(mode: str) -> str:
    """A mode of data parallelism."""
    return _one_of(mode, "mode", ("auto", "off", "dp", "ddp"))


def strict_checked(strict: bool) -> bool:
    """True or False."""
    return _check_type(strict, bool, "strict", "True or False")


def calibration_checked(path: str | os.PathLike[str]) -> str:
    """The path of a table."""
    text = _check_type(os.fspath(path), str, "calibration", "a path as str")
    if not text:
        raise ValueError("calibration='' is no path of a table")
    return text


def _check_type(value: Any, kind: Any, option: str, what: str) -> Any:
    """The value; a bool is no integer."""
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"{option} is {what}, not {type(value).__name__}: {value!r}")
    return value


def _one_of(value: Any, option: str, known: Sequence[str | None]) -> Any:
    """The value, which is one of those known; nothing is known: any string."""
    if value is not None or None not in known:
        what = "a string or None" if None in known else "a string"
        _check_type(value, str, option, what)
    if known and value not in known:
        listed = ", ".join(map(repr if None in known else str, known))
        raise ValueError(f"{option}={value!r}; there are: {listed}")
    return value


def _check_count(
    value: Any, option: str, least: int, most: int, it_is: str = "it is"
) -> None:
    _check_type(value, int, option, "an integer")
    if not least <= value <= most:
        what = f"{least} or more" if value < least else f"at most {most}"
        raise ValueError(f"{option}={value}; {it_is} {what}")


def _check_finite(value: Any, option: str) -> None:
    _check_type(value, (int, float), option, "a number")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{option}={value}; it is finite, as a float")
