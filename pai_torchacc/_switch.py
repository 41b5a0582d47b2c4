"""Switches: what is on, with which options, and how to get from here to there.

The state of the package is one immutable :class:`Config`. Enabling, disabling and
leaving a ``with`` block all mean: go to that Config.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from pai_torchacc import _exit_report, _host, calibration
from pai_torchacc._lock import ForkedLock
from pai_torchacc._quiet import is_quiet

log = logging.getLogger("pai_torchacc")

FEATURES = ("operator_fusion",)
"""All switches, in the order in which they are switched on."""

IN_BARE_ENABLE = ("operator_fusion",)
"""What ``enable()`` without names switches on."""

NUMERICS = calibration.LEVELS


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

    def wanted(self, operators: Iterable[str]) -> set[str]:
        """Those of these operators that include, exclude and ops leave."""
        asked = [names for names in (self.ops, self.include) if names is not None]
        return set(operators).intersection(*asked) - self.exclude


OFF = Config()


@dataclass
class _Active:
    """One switch that is on, or was asked for and could not be."""

    since: str | None = None
    reason: str | None = None


@dataclass
class _State:
    config: Config = OFF
    active: dict[str, _Active] = field(default_factory=dict)
    table: calibration.Table | None = None
    installed_as: Config | None = None
    generation: int = 0
    draining: bool = False
    is_busy: bool = False
    afterwards: Config | None = None


_lock = ForkedLock()
_state = _State()


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
        if name not in FEATURES:
            raise ValueError(
                f"unknown feature {name!r}; there are: {', '.join(FEATURES)}"
            )
    return tuple(name for name in FEATURES if name in asked)


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
    return _from_variable("PTAC_ENABLE", _features_from_text, IN_BARE_ENABLE)


def _features_from_text(text: str) -> tuple[str, ...]:
    listed = [n.strip() for n in text.split(",") if n.strip()]
    if listed in ([], ["1"], ["all"], ["true"]):
        return IN_BARE_ENABLE
    try:
        return names_checked(listed)
    except ValueError as error:
        raise ValueError(f"{error}; or all") from None


def is_disabled_by_environment() -> bool:
    """``PTAC_DISABLE`` beats everything."""
    return os.environ.get("PTAC_DISABLE", "") not in ("", "0", "false")


def current() -> Config:
    """What is asked for now."""
    return _state.config


def generation() -> int:
    """Changes whenever the state does."""
    return _state.generation


def go_to(config: Config, strict: bool = False) -> None:
    """Make the process be as ``config`` says.

    A feature that cannot be switched on stays off with its reason; with ``strict`` that
    is a RuntimeError, and the process is as it was before. Called in the midst of
    another change, as a signal handler may, it happens right after that.
    """
    with _lock:
        if _state.is_busy:
            _state.afterwards = config
            return
        try:
            with _busy():
                _change(config, strict)
        finally:
            drain()


@contextmanager
def _busy() -> Iterator[None]:
    """In the midst of a change: others that come up meanwhile follow at the end."""
    _state.is_busy = True
    try:
        yield
    finally:
        _state.is_busy = False
        later, _state.afterwards = _state.afterwards, None
        if later is not None:
            go_to(later)


def _change(config: Config, strict: bool) -> None:
    before = _state.config
    _state.generation += 1
    try:
        _apply(config)
        if strict:
            _insist(config)
    except BaseException:
        try:
            _apply(before)
        except BaseException:
            log.exception("could not go back to what was on: all is off")
            _apply(OFF)
        raise


def _insist(config: Config) -> None:
    for name in config.features:
        reason = _state.active[name].reason
        if reason:
            raise RuntimeError(f"{name} is not active: {reason}")


def _apply(config: Config) -> None:
    for name in reversed(_state.config.features):
        if name not in config.features and name in _state.active:
            _switch_off(name)
    _state.config = config
    for name in config.features:
        _switch_on(name, config)


def _switch_on(name: str, config: Config) -> None:
    from pai_torchacc import fusion

    held = _state.active.get(name)
    reason = _install(fusion, config)
    if reason is None:
        since = held.since if held and held.since else _now()
        _state.active[name] = _Active(since=since)
        if not (held and held.since):
            _say_on(name, config)
    else:
        if held and held.since:
            _remove(fusion)
        _state.active[name] = _Active(reason=reason)
        log.info("%s is not active: %s", name, reason)
    _exit_report.ask("PTAC_REPORT")


def _install(fusion: Any, config: Config) -> str | None:
    if is_disabled_by_environment():
        return "switched off by PTAC_DISABLE"
    try:
        c = _host.load()
    except _host.Unavailable as error:
        return str(error)
    c.shadow_every(config.verify)
    barred = _install_table(c, config)
    try:
        return fusion.install(c, config, barred)
    finally:
        _state.draining = bool(fusion.leftover(c))


def _install_table(c: Any, config: Config) -> set[str]:
    """Hand the chooser its table; return the operators that numerics bars."""
    table = find_table(c, config.calibration)
    points, barred = calibration.points(table, c.operators(), config.numerics)
    c.install_table(points)
    if _state.table is None or _state.table.name != table.name:
        _say_unknown(table)
    _state.table = table
    return barred


def find_table(c: Any, path: str | None) -> calibration.Table:
    """The calibration table for this CPU, or the one asked for by its path.

    Raises
    ------
    OSError, ValueError
        The file cannot be read, or is no table; the text says who asked for it.
    """
    model, isa = c.cpu()
    is_limited = bool(os.environ.get("PTAC_CPU_ISA"))
    try:
        return calibration.find(model, isa, is_limited, path)
    except OSError as error:
        text = f"{_who_asked(path)}: {error.strerror}"
        raise type(error)(error.errno, text, error.filename) from None
    except ValueError as error:
        raise ValueError(f"{_who_asked(path)}: {error}") from None


def _who_asked(path: str | None) -> str:
    by_variable = path is not None and path == os.environ.get("PTAC_CALIBRATION")
    return "PTAC_CALIBRATION" if by_variable else "calibration"


def _say_unknown(table: calibration.Table) -> None:
    unknown = {m.op for m in table.measurements}.difference(operator_names())
    if unknown:
        names = ", ".join(sorted(unknown))
        log.warning("%s: operators unknown here are left out: %s", table.name, names)


def _switch_off(name: str) -> None:
    from pai_torchacc import fusion

    held = _state.active.pop(name)
    if held.since:
        _remove(fusion)
        log.info("%s is off", name)


def _remove(fusion: Any) -> None:
    fusion.remove(_host.load())
    _state.draining = True


def drain(is_ending: bool = False) -> bool:
    """Take kernels that are switched off out of the dispatcher, if this is the time.

    Not in the midst of a change, which pending calls and signal handlers come into: the
    change ends by doing this itself. ``is_ending`` says that a backward pass calls this
    as the last thing it does.
    """
    with _lock:
        if not _state.draining:
            return True
        if _state.is_busy:
            return False
        c = _host.load()
        import torch

        from pai_torchacc import fusion

        if not is_quiet(c, torch, is_ending):
            _try_again_later(c, torch, is_ending)
            return False
        with _busy():
            c.override_remove(fusion.leftover(c))
            _state.draining = False
        return not _state.draining


def _try_again_later(c: Any, torch: Any, is_ending: bool) -> None:
    # A pass that ends runs what is queued now before it does.
    if torch._C._current_graph_task_id() != -1 and not is_ending:
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(_drain_after_backward)
    c.when_forwarded(_drain_quietly)


def _drain_after_backward() -> None:
    drain(is_ending=True)


def _drain_quietly() -> None:
    drain()


def _say_on(name: str, config: Config) -> None:
    table = _state.table.name if _state.table else "no"
    log.info("%s is on (numerics %s, %s table)", name, config.numerics, table)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def switch_status() -> dict[str, dict[str, Any]]:
    """Per switch: active, reason, since; and what is still on its way out."""
    with _lock:
        drain()
        result: dict[str, dict[str, Any]] = {}
        for name in FEATURES:
            held = _state.active.get(name, _Active())
            entry: dict[str, Any] = {
                "active": held.since is not None,
                "reason": held.reason,
                "since": held.since,
            }
            if _state.draining and held.since is None:
                entry["draining"] = len(_host.load().override_installed())
            result[name] = entry
        return result


def table() -> calibration.Table | None:
    """The calibration table in use."""
    return _state.table


class Handle:
    """What ``enable`` returns: true when everything asked for is active.

    ``with handle:`` restores, at its end, the state found at its beginning; for a
    handle that was just made that is the state before its ``enable``.
    """

    def __init__(self, asked: Config, before: Config):
        self.features = asked.features
        self._before = before
        self._asked = asked
        self._generation = generation()
        self._entered: list[Config] = []

    def __bool__(self) -> bool:
        return all(is_active(name) for name in self.features)

    @property
    def reason(self) -> str | None:
        """Why the handle is not active; None when it is."""
        for name in self.features:
            held = _state.active.get(name)
            if held is None:
                return f"{name} is switched off"
            if held.reason:
                return held.reason
        return None

    def status(self) -> dict[str, dict[str, Any]]:
        """Status of this handle's features."""
        everything = switch_status()
        return {name: everything[name] for name in self.features}

    def disable(self) -> None:
        """Switch this handle's features off."""
        disable(*self.features)

    def __enter__(self) -> Handle:
        with _lock:
            if self._generation == generation():
                self._entered.append(self._before)
            else:
                self._entered.append(current())
                go_to(self._asked)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        go_to(self._entered.pop())

    def __repr__(self) -> str:
        state = "active" if self else f"inactive: {self.reason}"
        return f"<pai_torchacc {', '.join(self.features)}: {state}>"


def is_active(name: str) -> bool:
    """Whether this feature runs."""
    held = _state.active.get(name)
    return held is not None and held.since is not None


def enable(config: Config, strict: bool) -> Handle:
    """Go to ``config`` and return the handle for its features."""
    check_something_left(config)
    with _lock:
        before = current()
        go_to(config, strict)
        return Handle(config, before)


def disable(*features: str) -> None:
    """Switch features off; all of them when none is named."""
    with _lock:
        gone = names_checked(features) if features else FEATURES
        rest = tuple(n for n in current().features if n not in gone)
        go_to(replace(current(), features=rest) if rest else OFF)
