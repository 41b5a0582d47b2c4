"""The locks of the package's state, which a fork waits for.

A child has only the thread that forked: it must not inherit a lock that another thread
held, nor a state that another thread was in the midst of changing.

Who needs several takes them in this order, as forks do. One interrupt leaves none held.
Importing this module changes what a fork does: that is left until one is needed.
"""

from __future__ import annotations

import os
import sys
import threading
from _thread import RLock


class Lock(RLock):
    """From 3.14 on Python looks for signals between ``__enter__`` and the block."""

    def __enter__(self) -> bool:
        n = self._recursion_count()
        try:
            return self.acquire()
        except BaseException:
            if self._recursion_count() > n:
                self.release()
            raise


_kind = Lock if sys.version_info >= (3, 14) else threading.RLock
float_mode, switch, hooks, saved_storage = (_kind() for _ in range(4))


def _guard() -> None:
    try:
        from pai_torchacc import _C
    except ImportError:  # nothing can be switched on
        return
    locks = float_mode, switch, hooks, saved_storage
    before, parent, child = _C.fork_guards(locks)
    os.register_at_fork(before=before, after_in_parent=parent, after_in_child=child)


_guard()
