"""The locks of the package's state, which a fork waits for.

A child has only the thread that forked: it must not inherit a lock that another thread
held, nor a state that another thread was in the midst of changing.

Who needs several takes them in this order, as forks do. They are C's own, which an
interrupt cannot leave held. Importing this module changes what a fork does: that is
left until one of them is needed.
"""

from __future__ import annotations

import os
import threading

float_mode = threading.RLock()
switch = threading.RLock()
hooks = threading.RLock()
saved_storage = threading.RLock()


def _guard() -> None:
    try:
        from pai_torchacc import _C
    except ImportError:  # nothing can be switched on
        return
    locks = float_mode, switch, hooks, saved_storage
    before, in_parent, in_child = _C.fork_guards(locks)
    os.register_at_fork(
        before=before, after_in_parent=in_parent, after_in_child=in_child
    )


_guard()
