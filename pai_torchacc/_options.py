"""What can be switched and chosen: names, options, and their checks.

The state of the package is one immutable :class:`Config`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pai_torchacc import _features, _host, calibration

NUMERICS = calibration.LEVELS


NO_CAP = 2**64 - 1

FILLS = (None, "zero", "junk")
"""What new storages are filled with, in the order of the extension's codes."""

DEVICES = ("cpu", "cuda")

TRAININGS = (None, "bf16")
"""What ``enable_model_quantization`` may be asked to do for training."""


@dataclass(frozen=True)
class PoolOptions:
    """How the memory pool is to be."""

    device: str | None = None
    cap: int | None = None
    reserve: int = 0
    trim: str | int = "auto"
    policy: str = "exact_fit"
    fill: str | None = None
    history: int = 0


RATE_POLICIES = ("auto", "loss_free", "off")


@dataclass(frozen=True)
class RateOptions:
    """How learning rates are to be adapted."""

    policy: str = "auto"
    floor: float | None = None
    max_growth: float = 1.5
    verbose: bool = False


@dataclass(frozen=True)
class Config:
    """Everything that can be switched or chosen."""

    features: tuple[str, ...] = ()
    ops: frozenset[str] | None = None
    numerics: str = "close"
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    verify: int = 0
    calibration: str | None = None
    pool: PoolOptions = field(default_factory=PoolOptions)
    rate: RateOptions = field(default_factory=RateOptions)
    training: str | None = None
    lent: tuple[bool, str] | None = None
    """What ``training`` changed: whether fusion was off, and the numerics before."""

    def wanted(self, operators: Iterable[str]) -> set[str]:
        """Those of these operators that include, exclude and ops leave."""
        asked = [names for names in (self.ops, self.include) if names is not None]
        return set(operators).intersection(*asked) - self.exclude


OFF = Config()


def without_pool_options(config: Config) -> Config:
    """The configuration without the pool's options, once no feature needs the pool."""
    is_needed = {"memory_pool", "memory_reuse"} & {*config.features}
    return config if is_needed else replace(config, pool=PoolOptions())


def names_checked(features: Iterable[str]) -> tuple[str, ...]:
    """The features in canonical order.

    Raises
    ------
    TypeError
        A name is not a string.
    ValueError
        There is no such feature; the text lists those that exist.
    """
    asked = list(features)
    for name in asked:
        if not isinstance(name, str):
            raise TypeError(
                f"feature names are strings, not {type(name).__name__}: {name!r}"
            )
        if name not in _features.names():
            known = ", ".join(_features.names())
            raise ValueError(f"unknown feature {name!r}; there are: {known}")
    return tuple(name for name in _features.names() if name in asked)


def operators_checked(
    names: Iterable[str] | None, option: str
) -> frozenset[str] | None:
    """Operator names as the report spells them, with their ``_backward``; None for all.

    Raises
    ------
    TypeError
        This is no collection of strings.
    ValueError
        There is no such operator; the text lists those that exist.
    """
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
    try:
        return [name for name, _, _ in _host.extension().operators()]
    except _host.Unavailable:
        return []


def numerics_checked(level: str) -> str:
    """One of the numerics levels."""
    if not isinstance(level, str):
        raise TypeError(f"numerics is a string, not {type(level).__name__}")
    if level not in NUMERICS:
        raise ValueError(f"numerics={level!r}; there are: {', '.join(NUMERICS)}")
    return level


def verify_checked(every: int) -> int:
    """How many calls one shadow check stands for; 0 for none."""
    if isinstance(every, bool) or not isinstance(every, int):
        raise TypeError(f"verify is an integer, not {type(every).__name__}")
    if not 0 <= every < 1 << 63:
        raise ValueError(f"verify={every}; it is 0, or one check in so many calls")
    return every


_MOST_BYTES = (1 << 62) - 1
_MOST_EVENTS = 1 << 28
_MOST_SECONDS = (1 << 31) - 1


def pool_checked(options: PoolOptions) -> PoolOptions:
    """Options of the memory pool that can be.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value; the text names it and what it may be.
    """
    if options.device is not None:
        device_checked(options.device)
    _number_checked(options.reserve, "reserve", 0, _MOST_BYTES)
    _number_checked(options.history, "history", 0, _MOST_EVENTS)
    if options.cap is not None:
        _number_checked(options.cap, "cap", 1, _MOST_BYTES)
        if options.reserve > options.cap:
            raise ValueError(
                f"reserve={options.reserve} is more than cap={options.cap} allows"
            )
    policies = policy_names()
    if not isinstance(options.policy, str):
        raise TypeError(f"policy is a string, not {type(options.policy).__name__}")
    if policies and options.policy not in policies:
        raise ValueError(f"policy={options.policy!r}; there are: {', '.join(policies)}")
    if options.fill is not None and not isinstance(options.fill, str):
        raise TypeError(f"fill is a string or None, not {type(options.fill).__name__}")
    if options.fill not in FILLS:
        raise ValueError(f"fill={options.fill!r}; there are: None, 'zero', 'junk'")
    _trim_checked(options.trim)
    return options


def _number_checked(value: int, option: str, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{option} is an integer, not {type(value).__name__}")
    if value < least:
        raise ValueError(f"{option}={value}; it is {least} or more")
    if value > most:
        raise ValueError(f"{option}={value}; it is at most {most}")


def _trim_checked(trim: str | int) -> None:
    if isinstance(trim, str):
        if trim not in ("auto", "never"):
            raise ValueError(
                f"trim={trim!r}; it is 'auto', 'never', or a number of idle seconds"
            )
    elif isinstance(trim, bool) or not isinstance(trim, int):
        raise TypeError(f"trim is a string or an integer, not {type(trim).__name__}")
    elif trim < 1:
        raise ValueError(f"trim={trim}; idle seconds are 1 or more")
    elif trim > _MOST_SECONDS:
        raise ValueError(f"trim={trim}; idle seconds are at most {_MOST_SECONDS}")


def rate_checked(options: RateOptions) -> RateOptions:
    """Options of the adaptive learning rate that can be.

    Raises
    ------
    TypeError, ValueError
        An option has a wrong type or value; the text names it and what it may be.
    """
    if not isinstance(options.policy, str):
        raise TypeError(f"policy is a string, not {type(options.policy).__name__}")
    if options.policy not in RATE_POLICIES:
        known = ", ".join(RATE_POLICIES)
        raise ValueError(f"policy={options.policy!r}; there are: {known}")
    if options.floor is not None:
        _finite_checked(options.floor, "floor")
    _finite_checked(options.max_growth, "max_growth")
    if options.max_growth <= 1:
        raise ValueError(f"max_growth={options.max_growth}; it is more than 1")
    if not isinstance(options.verbose, bool):
        raise TypeError(f"verbose is a bool, not {type(options.verbose).__name__}")
    return options


def _finite_checked(value: float, option: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{option} is a number, not {type(value).__name__}")
    if not abs(value) <= sys.float_info.max:
        raise ValueError(f"{option}={value}; it is finite, as a float")


def device_checked(device: object) -> str:
    """The kind of a device that there are pools for.

    Raises
    ------
    TypeError, ValueError
        This is no device, or one without a pool.
    """
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


def policy_names() -> list[str]:
    """Placement policies, or nothing where the extension is missing."""
    try:
        return _host.extension().pool_policies()
    except _host.Unavailable:
        return []


def training_checked(training: str | None) -> str | None:
    """What to do for training, or None."""
    if training is not None and not isinstance(training, str):
        kind = type(training).__name__
        raise TypeError(f"training is a string or None, not {kind}")
    if training not in TRAININGS:
        raise ValueError(f"training={training!r}; there are: None, 'bf16'")
    return training


def strict_checked(strict: bool) -> bool:
    """True or False."""
    if not isinstance(strict, bool):
        raise TypeError(f"strict is True or False, not {type(strict).__name__}")
    return strict


def calibration_checked(path: str | os.PathLike[str]) -> str:
    """The path of a table."""
    text = os.fspath(path)
    if not isinstance(text, str):
        raise TypeError(f"calibration is a path as str, not {type(text).__name__}")
    if not text:
        raise ValueError("calibration='' is no path of a table")
    return text


def config_from_environment() -> Config:
    """The options that ``PTAC_*`` variables ask for, checked."""
    return Config(
        numerics=_from_variable("PTAC_NUMERICS", numerics_checked, OFF.numerics),
        verify=_from_variable("PTAC_VERIFY", _verify_from_text, OFF.verify),
        calibration=os.environ.get("PTAC_CALIBRATION") or None,
    )


def _verify_from_text(text: str) -> int:
    try:
        every = int(text)
    except ValueError:
        raise ValueError(f"{text!r} is no integer from 0 on") from None
    return verify_checked(every)


def _from_variable(variable: str, checked: Callable[[str], Any], default: Any) -> Any:
    """What a variable says, checked; errors name it."""
    text = os.environ.get(variable)
    if not text:
        return default
    try:
        return checked(text)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def features_from_environment() -> tuple[str, ...]:
    """What ``enable()`` without names means here."""
    bare = _features.in_bare_enable()
    return _from_variable("PTAC_ENABLE", _features_from_text, bare)


def _features_from_text(text: str) -> tuple[str, ...]:
    listed = [n.strip() for n in text.split(",") if n.strip()]
    if listed in ([], ["1"], ["all"], ["true"]):
        return _features.in_bare_enable()
    try:
        return names_checked(listed)
    except ValueError as error:
        raise ValueError(f"{error}; or all") from None


def is_disabled_by_environment() -> bool:
    """``PTAC_DISABLE`` beats everything."""
    return os.environ.get("PTAC_DISABLE", "") not in ("", "0", "false")
