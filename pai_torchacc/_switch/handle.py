"""Handles, ``with`` blocks and decorators: for how long something is on."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from pai_torchacc import _environment, _features, _frames, _host
from pai_torchacc._config import OFF, Config
from pai_torchacc._options import check_something_left, names_checked
from pai_torchacc._switch import state

_F = TypeVar("_F", bound=Callable[..., Any])

_scopes: list[_Scope] = []
"""Blocks that are open, of all threads, in the order in which they began."""


class _Scope(AbstractContextManager[Any]):
    """A ``with`` block, or a call of a decorated function.

    Blocks of other threads, and of generators, need not end in the reverse of the order
    in which they began. One that ends while later ones are open changes nothing yet:
    what it would have restored is restored at their end.
    """

    def __init__(self, before: Config):
        self._thread = threading.get_ident()
        self._before = before
        _scopes.append(self)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.close()
        if error is not None:
            _frames.hide(error)

    def close(self) -> None:
        with state.locked():
            i = _scopes.index(self)
            del _scopes[i]
            if i < len(_scopes):
                _scopes[i]._before = self._before
            else:
                state.go_to(self._before)

    def is_of_this_thread(self) -> bool:
        return self._thread == threading.get_ident()


def _begin(asked: Config) -> _Scope:
    with state.locked():
        before = state.current()
        state.go_to(asked)
        return _Scope(before)


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
        self._generation = state.generation()
        self._open: list[_Scope] = []

    def __bool__(self) -> bool:
        return all(state.is_active(name) for name in self.features)

    @property
    def reason(self) -> str | None:
        """Why the handle is not active; None when it is."""
        for name in self.features:
            if not state.is_active(name):
                return state.reason(name) or f"{name} is switched off"
        return None

    def status(self) -> dict[str, dict[str, Any]]:
        """Status of this handle's features."""
        everything = state.status()
        return {name: everything[name] for name in self.features}

    def disable(self) -> None:
        """Switch this handle's features off."""
        disable(*self.features)

    def __enter__(self) -> Handle:
        with state.locked():
            is_just_made = self._generation == state.generation()
            scope = _Scope(self._before) if is_just_made else _begin(self._asked)
            self._open.append(scope)
        return self

    def __exit__(self, *_: object) -> None:
        with state.locked():
            own = [s for s in self._open if s.is_of_this_thread()]
            scope = (own or self._open)[-1]
            self._open.remove(scope)
            scope.close()

    def __call__(self, function: _F) -> _F:
        """Have each call of a function run with what this handle asks for.

        Of generators and coroutines: from the first step to the end.
        """
        if not callable(function):
            raise TypeError(f"a handle decorates a function, not {function!r}")
        with state.locked():
            if self._generation == state.generation():
                state.go_to(self._before)
        return _wrapped(function, self._asked)

    def __repr__(self) -> str:
        now = "active" if self else f"inactive: {self.reason}"
        return f"<pai_torchacc {', '.join(self.features)}: {now}>"


def _wrapped(function: Any, config: Config) -> Any:
    async def coroutine(*args: Any, **kwargs: Any) -> Any:
        with _begin(config):
            return await function(*args, **kwargs)

    def generator(*args: Any, **kwargs: Any) -> Any:
        with _begin(config):
            return (yield from function(*args, **kwargs))

    async def stream(*args: Any, **kwargs: Any) -> Any:
        with _begin(config):
            async with aclosing(function(*args, **kwargs)) as inner:
                step = inner.asend(None)
                while True:
                    try:
                        item = await step
                    except StopAsyncIteration:
                        return
                    try:
                        step = inner.asend((yield item))
                    except Exception as error:
                        step = inner.athrow(error)

    def plain(*args: Any, **kwargs: Any) -> Any:
        with _begin(config):
            return function(*args, **kwargs)

    wrapper: Callable[..., Any] = plain
    if inspect.isasyncgenfunction(function):
        wrapper = stream
    elif inspect.iscoroutinefunction(function):
        wrapper = coroutine
    elif inspect.isgeneratorfunction(function):
        wrapper = generator
    return functools.wraps(function)(wrapper)


def enable(config: Config, strict: bool = False) -> Handle:
    """Go to ``config`` and return the handle for its features."""
    check_something_left(config)
    with state.locked():
        before = state.current()
        state.go_to(config, strict)
        handle = Handle(config, before)
    _warn_of_silence(config)
    return handle


def _warn_of_silence(config: Config) -> None:
    """Say what would else be found out much later: it is off, or a name is wrong."""
    for text in _environment.unknown_variables():
        _frames.warn_once(text)
    reasons: dict[str, list[str]] = {}
    for name in config.features:
        reason = state.reason(name)
        if reason and reason != state.BY_ENVIRONMENT:
            reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        verb = "is" if len(names) == 1 else "are"
        text = f"pai_torchacc: {', '.join(names)} {verb} not active: {reason}"
        _frames.warn_once(text, key=reason)


def enable_one(
    name: str, change: Callable[[Config], Config] | None = None, **changes: Any
) -> Handle:
    """Switch one feature on; other options and features stay as they are.

    But for ``changes`` and what ``change`` makes of the configuration.
    """
    with state.locked():
        held = state.current()
        if not held.features:
            held = _environment.config()
        names = names_checked((*held.features, name))
        config = replace(held, features=names, **changes)
        return enable(change(config) if change else config)


def disable(*features: str) -> None:
    """Switch features off and restore what they changed.

    Without names everything is switched off. Kernels stop at once; dispatcher entries
    leave when no call of ours is in flight and no backward pass runs, at the latest at
    the next quiet moment (:func:`status` says ``draining`` until then).

    Raises
    ------
    ValueError, TypeError
        There is no such feature.
    """
    with state.locked():
        gone = names_checked(features) if features else _features.names()
        held = state.current()
        left = replace(held, features=tuple(n for n in held.features if n not in gone))
        rows = _features.all_features()
        used = {row.options for row in rows if row.name in left.features}
        for row in rows:
            if row.options and row.options not in used:
                left = replace(left, **{row.options: getattr(OFF, row.options)})
            if row.name not in left.features:
                left = row.forget(left)
        state.go_to(left if left.features else OFF)


def disabler(name: str, about: str) -> Callable[[], None]:
    """The function ``disable_...`` of one feature, with its docstring."""

    def switch_off() -> None:
        disable(name)

    switch_off.__name__ = switch_off.__qualname__ = f"disable_{name}"
    switch_off.__module__, switch_off.__doc__ = "pai_torchacc", about
    return switch_off


@contextmanager
def disabled() -> Iterator[None]:
    """Run stock operators in this thread until the block ends, at the user's rates.

    A block that another thread leaves, as happens to generators, ends for the thread
    that had entered it.
    """
    c = _host.compiled()
    held = [c.thread_disable()] if c else []
    try:
        yield
    finally:
        held.clear()  # also where a traceback keeps this frame
