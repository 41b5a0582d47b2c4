"""The watcher of this process: begun with its process group, ended with it."""

from __future__ import annotations

import atexit
import logging
import sys

from pai_torchacc._config import WatchOptions
from pai_torchacc.distributed.watching_thread import FAILED, Watcher

log = logging.getLogger("pai_torchacc")

_PREFIX = "pai_torchacc.watch"

_options = WatchOptions()
_running: Watcher | None = None


def options_are(options: WatchOptions) -> None:
    """After how many seconds waits are explained from now on."""
    global _options  # noqa: PLW0603
    _options = options
    if _running is not None:
        _running.after = options.after


def begin() -> None:
    """Start the thread, unless it runs already or there is nobody to watch."""
    global _running  # noqa: PLW0603
    import torch.distributed as dist

    if is_running() or not dist.is_initialized() or dist.get_world_size() == 1:
        return
    store = dist.distributed_c10d._get_default_store()
    if not hasattr(store, "clone"):
        log.info("ranks are not watched: their store has no second connection")
        return
    own = dist.distributed_c10d.PrefixStore(_PREFIX, store.clone())
    rank, size = dist.get_rank(), dist.get_world_size()
    _running = Watcher(own, rank, size, _options.after)
    _running.start()
    atexit.register(_end_at_exit)


def is_running() -> bool:
    """Whether a thread of this process watches; a forked child has none."""
    return _running is not None and _running.is_of_this_process()


def n_watched() -> int:
    """How many other ranks this one watches now."""
    return _running.n_met if _running is not None and is_running() else 0


def end(why: str) -> None:
    """Tell the others why this rank is gone, and stop."""
    global _running  # noqa: PLW0603
    if _running is not None:
        if _running.is_of_this_process():
            _running.leave(why)
        _running = None
        atexit.unregister(_end_at_exit)


def _end_at_exit() -> None:
    error = getattr(sys, "last_value", None)
    if error is None:
        end("has ended")
        return
    if _running is not None and _running.is_of_this_process():
        _running.look_for_the_cause(error)
    end(f"{FAILED}: {type(error).__name__}: {error}".splitlines()[0])
