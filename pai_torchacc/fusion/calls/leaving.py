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
        if not _lock.switch.acquire(blocking=False):
            c.windows_then(look)
            return
        try:
            _leave_if_quiet(c, look)
        finally:
            _lock.switch.release()

    look()


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
    _leaving.is_now = True
    try:
        leave()
        rows.keep(c)
        c.sites_forget()
        _leaving.leave = None
        c.windows_then(None)
    finally:
        _leaving.is_now = False
        come_back, _leaving.come_back = _leaving.come_back, None
    if come_back is not None:
        come_back()
