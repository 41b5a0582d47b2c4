"""Switches: what is on, with which options, and how to get from here to there.

The state of the package is one immutable :class:`Config`. Enabling, disabling and
leaving a ``with`` block all mean: go to that Config.

What a switch does is its row in the table of features: see :mod:`._features`.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TypeVar

from pai_torchacc import _features, _host, _warn
from pai_torchacc._features import feature
from pai_torchacc._options import (
    NUMERICS,
    OFF,
    Config,
    check_something_left,
    config_from_environment,
    is_disabled_by_environment,
    names_checked,
)
from pai_torchacc._quiescence import is_quiet

log = logging.getLogger("pai_torchacc")

BY_ENVIRONMENT = "switched off by PTAC_DISABLE"

_F = TypeVar("_F", bound=Callable[..., Any])

when_asked: list[Callable[[], None]] = []
"""Called after each attempt to switch a feature on."""


@dataclass
class _Active:
    """One switch that is on, or was asked for and could not be."""

    since: str | None = None
    reason: str | None = None


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
    scopes: list[_Scope] = field(default_factory=list)
    """Blocks that are open, of all threads, in the order in which they began."""


_state = _State()


def _locked() -> Any:
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
    with _locked():
        if _state.is_busy:
            _state.afterwards = config
            return
        try:
            _alone(lambda: _change(config, strict))
        finally:
            drain()


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
        reason = _state.active[name].reason
        if reason:
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
    held = _state.active.get(name)
    if not is_active(name):  # else its install() also leads back to what it was
        _state.unsure.add(name)
    reason = _install(name, config)
    if reason is None:
        since = held.since if held and held.since else _now()
        _state.active[name] = _Active(since=since)
    else:
        if held and held.since:
            _remove(name)
        _state.active[name] = _Active(reason=reason)
        log.info("%s is not active: %s", name, reason)
    _state.unsure.discard(name)
    for tell in when_asked:
        tell()


def _install(name: str, config: Config) -> str | None:
    if is_disabled_by_environment():
        return BY_ENVIRONMENT
    try:
        c = _host.load()
    except _host.Unavailable as error:
        return str(error)
    _state.draining = True
    try:
        reason = feature(name).install(c, config)
    except _host.Unavailable as error:
        _remove(name)
        return str(error)
    _note_draining(c)
    return reason


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
        _note_draining(c)
    _state.unsure.discard(name)


def _note_draining(c: Any) -> None:
    _state.draining = bool(_leftover(c))


def _leftover(c: Any) -> list[str]:
    return [name for row in _features.all_features() for name in row.leftover(c)]


def drain(is_ending: bool = False) -> bool:
    """Take kernels that are switched off out of the dispatcher, if this is the time.

    Not in the midst of a change, which pending calls and signal handlers come into: the
    change ends by doing this itself. ``is_ending`` says that a backward pass calls this
    as the last thing it does.
    """
    with _locked():
        if not _state.draining:
            return True
        if _state.is_busy:
            return False
        c = _host.load()
        import torch

        if not is_quiet(c, torch, is_ending):
            _try_again_later(c, torch, is_ending)
            return False
        _alone(lambda: _take_out(c))
        return not _state.draining


def _take_out(c: Any) -> None:
    c.override_remove(_leftover(c))
    _state.draining = False


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def switch_status() -> dict[str, dict[str, Any]]:
    """Per switch: active, reason, since; and what is still on its way out."""
    with _locked():
        drain()
        c = _host.loaded()
        result: dict[str, dict[str, Any]] = {}
        for row in _features.all_features():
            held = _state.active.get(row.name, _Active())
            entry: dict[str, Any] = {
                "active": held.since is not None,
                "reason": held.reason,
                "since": held.since,
            }
            if c is not None:
                entry |= row.status(c)
            result[row.name] = entry
        return result


class _Scope:
    """A ``with`` block, or a call of a decorated function.

    Blocks of other threads, and of generators, need not end in the reverse of the order
    in which they began. One that ends while later ones are open changes nothing yet:
    what it would have restored is restored at their end.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._before = OFF

    def begin(self, asked: Config) -> None:
        with _locked():
            before = current()
            go_to(asked)
            self.begin_as_it_is(before)

    def begin_as_it_is(self, before: Config) -> None:
        """Begin with what is on; the end will restore ``before``."""
        with _locked():
            self._before = before
            _state.scopes.append(self)

    def end(self) -> None:
        with _locked():
            scopes = _state.scopes
            i = scopes.index(self)
            del scopes[i]
            if i < len(scopes):
                scopes[i]._before = self._before
            else:
                go_to(self._before)

    def is_of_this_thread(self) -> bool:
        return self._thread == threading.get_ident()


class Handle:
    """What ``enable`` returns: true when everything asked for is active.

    ``with handle:`` restores, at its end, the state found at its beginning; for a
    handle that was just made that is the state before its ``enable``. As a decorator,
    ``@pai_torchacc.enable()``, it does so around each call of the function, and what
    its own ``enable`` switched on goes off again until then.
    """

    def __init__(self, asked: Config, before: Config):
        self.features = asked.features
        self._before = before
        self._asked = asked
        self._generation = generation()
        self._scopes: list[_Scope] = []

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
        scope = _Scope()
        with _locked():
            if self._generation == generation():
                scope.begin_as_it_is(self._before)
            else:
                scope.begin(self._asked)
            self._scopes.append(scope)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _locked():
            own = [s for s in self._scopes if s.is_of_this_thread()]
            scope = (own or self._scopes)[-1]
            self._scopes.remove(scope)
            scope.end()

    def __call__(self, function: _F) -> _F:
        """Have each call of a function run with what this handle asks for.

        Of generators and coroutines: from the first step to the end.
        """
        if not callable(function):
            raise TypeError(f"a handle decorates a function, not {function!r}")
        with _locked():
            if self._generation == generation():
                go_to(self._before)
        return _wrapped(function, self._asked)

    def __repr__(self) -> str:
        state = "active" if self else f"inactive: {self.reason}"
        return f"<pai_torchacc {', '.join(self.features)}: {state}>"


@contextmanager
def _running(config: Config) -> Iterator[None]:
    scope = _Scope()
    scope.begin(config)
    try:
        yield
    finally:
        scope.end()


def _wrapped(function: Any, config: Config) -> Any:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _running(config):
                return await function(*args, **kwargs)

    elif inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _running(config):
                return (yield from function(*args, **kwargs))

    else:

        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            with _running(config):
                return function(*args, **kwargs)

    return wrapper


def is_active(name: str) -> bool:
    """Whether this feature runs."""
    held = _state.active.get(name)
    return held is not None and held.since is not None


def reason(name: str) -> str | None:
    """Why this feature was asked for and is not active."""
    held = _state.active.get(name)
    return held.reason if held else None


def enable(config: Config, strict: bool) -> Handle:
    """Go to ``config`` and return the handle for its features."""
    check_something_left(config)
    with _locked():
        before = current()
        go_to(config, strict)
        handle = Handle(config, before)
    _warn_of_silence(config)
    return handle


def _warn_of_silence(config: Config) -> None:
    """Say what would else be found out much later: it is off, or a name is wrong."""
    for text in _warn.unknown_variables():
        _warn.once(text)
    reasons: dict[str, list[str]] = {}
    for name in config.features:
        held = _state.active.get(name)
        if held and held.reason and held.reason != BY_ENVIRONMENT:
            reasons.setdefault(held.reason, []).append(name)
    for reason, names in reasons.items():
        verb = "is" if len(names) == 1 else "are"
        text = f"pai_torchacc: {', '.join(names)} {verb} not active: {reason}"
        _warn.once(text, key=reason)


def enable_one(
    name: str, change: Callable[[Config], Config] | None = None, **changes: Any
) -> Handle:
    """Switch one feature on; other options and features stay as they are.

    But for ``changes`` and what ``change`` makes of the configuration.
    """
    held = current()
    if not held.features:
        held = config_from_environment()
    names = names_checked((*held.features, name))
    config = replace(held, features=names, **changes)
    return enable(change(config) if change else config, strict=False)


def disable(*features: str) -> None:
    """Switch features off; all of them when none is named."""
    with _locked():
        gone = names_checked(features) if features else _features.names()
        rest = tuple(n for n in current().features if n not in gone)
        left = replace(current(), features=rest)
        for row in _features.all_features():
            if row.name not in rest:
                left = row.forget(left)
        go_to(left if left.features else OFF)


@contextmanager
def disabled() -> Iterator[None]:
    """Run stock operators in this thread until the block ends, at the user's rates.

    A block that another thread leaves, as happens to generators, ends for the thread
    that had entered it.
    """
    try:
        c = _host.extension()
    except _host.Unavailable:
        yield
        return
    held = [c.thread_disable()]
    try:
        yield
    finally:
        held.clear()  # also where a traceback keeps this frame
