"""The lock of the package's state, which a fork waits for.

A child has only the thread that forked: it must not inherit a lock that another thread
held, nor a state that another thread was in the midst of changing.
"""

from __future__ import annotations

import os
import threading


class ForkedLock:
    """A reentrant lock for ``with``, which the forking thread holds while it forks."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_registered = False

    def __enter__(self) -> None:
        # Not before it is needed: importing the package changes nothing. That two
        # threads may both do it is no harm, since the lock counts.
        if not self._is_registered:
            os.register_at_fork(
                before=self._lock.acquire,
                after_in_parent=self._lock.release,
                after_in_child=self._lock.release,
            )
            self._is_registered = True
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
