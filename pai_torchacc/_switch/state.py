"""The state that the process is in, and the way from one Config to another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pai_torchacc import _environment, _features, _host
from pai_torchacc._config import OFF, Config
from pai_torchacc._features import feature
from pai_torchacc._options import NUMERICS
from pai_torchacc._switch import quiescence

log = logging.getLogger("pai_torchacc")

BY_ENVIRONMENT = "switched off by PTAC_DISABLE"

_PATIENCE_S = 0.05
"""How long a switch waits for other threads to sleep; then its entries leave later."""

_UNLIKE_TORCH = (AttributeError, ImportError, LookupError, TypeError, RuntimeError)
"""What a torch raises that lacks something we look for."""

when_asked: list[Callable[[], None]] = []
"""Called after each attempt to switch a feature on."""


@dataclass
class _Active:
    """One switch that is on, or was asked for and could not be."""

    reason: str | None = None
    since: str | None = None


@dataclass
class _State:
    config: Config = OFF
    active: dict[str, _Active] = field(default_factory=dict)
    generation: int = 0
    draining: bool = False
    """There may be kernels to take out of the dispatcher."""
    unsure: set[str] = field(default_factory=set)
    """Features of which an exception may leave a part."""
    furthest: str | None = None
    """The numerics furthest from stock's bits that were in force."""
    is_busy: bool = False
    afterwards: Config | None = None


_state = _State()


def locked() -> Any:
    """The lock of all this, for ``with``."""
    from pai_torchacc import _lock

    return _lock.switch


def current() -> Config:
    """What is asked for now."""
    return _state.config


def furthest_numerics() -> str:
    """What numerics results may have since the last :func:`forget_numerics`."""
    return _state.furthest or _state.config.numerics


def forget_numerics() -> None:
    """Begin anew with what is on now."""
    _state.furthest = None
    _note_numerics()


def _note_numerics() -> None:
    config = _state.config
    if config.features:
        known = [_state.furthest] if _state.furthest else []
        _state.furthest = max([*known, config.numerics], key=NUMERICS.index)


def generation() -> int:
    """Changes whenever the state does."""
    return _state.generation


def go_to(config: Config, strict: bool = False) -> None:
    """Make the process be as ``config`` says.

    A feature that cannot be switched on stays off with its reason; with ``strict`` that
    is a RuntimeError, and the process is as it was before. Called in the midst of
    another change, as a signal handler may, it happens right after that.
    """
    try:
        with locked():
            if _state.is_busy:
                _state.afterwards = config
                return
            try:
                _alone(lambda: _change(config, strict))
            finally:
                drain()
    finally:
        _look_again()


def _look_again() -> None:
    """Let go what waited for the lock while this thread had it."""
    c = _host.loaded()
    if c is not None:
        c.windows_look()


def _alone(change: Callable[[], None]) -> None:
    """In the midst of a change: others that come up meanwhile follow at the end."""
    try:
        _state.is_busy, _state.afterwards = True, None
        change()
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
            _go_back(before)
        except BaseException:
            log.exception("could not go back to what was on: all is off")
            _go_back(OFF)
        raise


def _go_back(config: Config) -> None:
    for name in [n for n in reversed(_features.names()) if n in _state.unsure]:
        _state.active.pop(name, None)
        _remove(name)
    _apply(config)


def _insist(config: Config) -> None:
    for name in config.features:
        if reason := _state.active[name].reason:
            raise RuntimeError(f"{name} is not active: {reason}")


def _apply(config: Config) -> None:
    for name in reversed(_state.config.features):
        if name not in config.features and name in _state.active:
            _switch_off(name)
    _state.config = config
    _note_numerics()
    before = {name for name in config.features if is_active(name)}
    for name in config.features:
        _switch_on(name, config)
    _say_on([n for n in config.features if is_active(n) and n not in before], config)


def _say_on(names: list[str], config: Config) -> None:
    if names:
        verb = "is" if len(names) == 1 else "are"
        details = [feature(n).about(config) for n in names]
        log.info("%s %s on (%s)", ", ".join(names), verb, "; ".join(details))


def _switch_on(name: str, config: Config) -> None:
    since = _held(name).since
    if not since:  # else its install() also leads back to what it was
        _state.unsure.add(name)
    reason = _install(name, config)
    if reason is None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        _state.active[name] = _Active(since=since or now)
    else:
        if since:
            _remove(name)
        _state.active[name] = _Active(reason=reason)
        log.info("%s is not active: %s", name, reason)
    _state.unsure.discard(name)
    for tell in when_asked:
        tell()


def _install(name: str, config: Config) -> str | None:
    if _environment.is_disabled():
        return BY_ENVIRONMENT
    try:
        c = _host.load()
        _state.draining = True
        trouble = feature(name).install(c, config)
    except _host.Unavailable as error:
        _remove(name)
        return str(error)
    except _UNLIKE_TORCH as error:
        _remove(name)
        return f"this torch is unlike those known: {type(error).__name__}: {error}"
    _state.draining = bool(_leftover(c))
    return trouble


def _switch_off(name: str) -> None:
    held = _state.active[name]
    if held.since:
        _remove(name)
    del _state.active[name]
    if held.since:
        log.info("%s is off", name)


def _remove(name: str) -> None:
    _state.unsure.add(name)
    c = _host.loaded()
    if c is not None:
        _state.draining = True
        feature(name).remove(c)
        _state.draining = bool(_leftover(c))
    _state.unsure.discard(name)


def _leftover(c: Any) -> list[str]:
    return [name for row in _features.all_features() for name in row.leftover(c)]


def drain(is_ending: bool = False, patience_s: float = _PATIENCE_S) -> bool:
    """Take kernels that are switched off out of the dispatcher, if this is the time.

    Not in the midst of a change, which pending calls and signal handlers come into: the
    change ends by doing this itself. ``is_ending`` says that a backward pass calls this
    as the last thing it does; ``patience_s``, how long other threads may take to sleep.
    """
    with locked():
        is_done = _drain(is_ending, patience_s)
    _look_again()
    return is_done


def _drain(is_ending: bool, patience_s: float) -> bool:
    if not _state.draining:
        return True
    if _state.is_busy:
        return False
    c = _host.load()
    import torch

    _alone(lambda: _take_out(c, torch, is_ending, patience_s))
    if _state.draining:
        _try_again_later(c, torch, is_ending)
    return not _state.draining


def _take_out(c: Any, torch: Any, is_ending: bool, patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while quiescence.is_outside_backward(c, torch, is_ending):
        if c.override_remove(_leftover(c)):
            _state.draining = False
            return
        if time.monotonic() > until:
            return
        time.sleep(patience_s / 200)  # a team of workers spins before it sleeps


def _try_again_later(c: Any, torch: Any, is_ending: bool) -> None:
    # A pass that ends runs what is queued now before it does.
    if torch._C._current_graph_task_id() != -1 and not is_ending:
        engine = torch.autograd.Variable._execution_engine
        engine.queue_callback(_drain_after_backward)
    c.when_forwarded(_drain_quietly)


def _drain_after_backward() -> None:
    drain(is_ending=True)


def _drain_quietly() -> None:
    drain(patience_s=_PATIENCE_S / 50)


def status() -> dict[str, dict[str, Any]]:
    """What every switch does now.

    Returns
    -------
    dict
        By feature name: ``active``, ``reason`` when not active although asked for,
        ``since`` (ISO 8601), and ``draining`` while entries of a switch that is off
        wait for a quiet moment.
    """
    with locked():
        drain()
        c = _host.loaded()
        result: dict[str, dict[str, Any]] = {}
        for row in _features.all_features():
            held = _held(row.name)
            entry = {"active": held.since is not None} | vars(held)
            result[row.name] = entry | (row.status(c) if c is not None else {})
        return result


def is_active(name: str) -> bool:
    """Whether this feature runs."""
    return _held(name).since is not None


def reason(name: str) -> str | None:
    """Why this feature was asked for and is not active."""
    return _held(name).reason


def _held(name: str) -> _Active:
    return _state.active.get(name) or _Active()
