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

switch = threading.RLock()
hooks = threading.RLock()
boxes = threading.RLock()

# What is registered last is called first before a fork.
for _lock in (boxes, hooks, switch):
    os.register_at_fork(
        before=_lock.acquire,
        after_in_parent=_lock.release,
        after_in_child=_lock.release,
    )
