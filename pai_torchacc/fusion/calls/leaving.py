"""When what answers calls may leave: not while one is between two that run as one.

A window of :mod:`..sites` is closed by a call in any thread, which then has us leave.
Threads that switch hold the lock of that, for which such a call does not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pai_torchacc import _lock
from pai_torchacc.fusion.sites import rows


@dataclass
class _Leaving:
    leave: Callable[[], None] | None = None
    """What is to be called once no window is open."""
    come_back: Callable[[], None] | None = None
    """What is to be called after that, since the switch has gone on meanwhile."""
    is_now: bool = False


_leaving = _Leaving()


def when_quiet(c: Any, leave: Callable[[], None]) -> None:
    """Call ``leave`` once no window is open: now, or right after the last call."""
    _leaving.leave, _leaving.come_back = leave, None

    def look() -> None:
        held: list[bool] = []
        try:
            if not _try_to_lock(held):
                # Who holds it looks after that; and may just have done so.
                c.windows_then(look)
            if held[0] or _try_to_lock(held):
                _leave_if_quiet(c, look)
        finally:
            if held and held[-1]:  # no call before this one: none is interrupted
                _lock.switch.release()

    look()


def _try_to_lock(held: list[bool]) -> bool:
    """Append whether this thread has the lock now, in the call that takes it.

    So a signal's handler that raises right behind it leaves a trace of the lock.
    """
    held.extend(map(_lock.switch.acquire, (False,)))
    return held[-1]


def stay(c: Any, come_back: Callable[[], None]) -> bool:
    """Leave no more. False in the midst of it, where a signal's handler may switch.

    Then ``come_back`` is called as soon as we have left.
    """
    if _leaving.is_now:
        _leaving.come_back = come_back
        return False
    _leaving.leave = None
    c.windows_then(None)
    return True


def _leave_if_quiet(c: Any, look: Callable[[], None]) -> None:
    leave = _leaving.leave
    if leave is None or _leaving.is_now:
        return
    c.windows_then(look)  # first: a signal's handler may raise from here on
    if not c.windows_are_quiet():  # a window that an exception cut off is none
        return
    is_done, _leaving.is_now = False, True
    try:
        _leave(c, leave)
        is_done = True
    finally:
        _leaving.is_now = False
        come_back, _leaving.come_back = _leaving.come_back, None
        if come_back is not None:
            if not is_done:
                _leave(c, leave)
            come_back()


def _leave(c: Any, leave: Callable[[], None]) -> None:
    leave()
    rows.keep(c)
    c.sites_forget()
    _leaving.leave = None
    c.windows_then(None)
