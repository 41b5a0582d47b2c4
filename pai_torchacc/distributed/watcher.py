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


def begin(is_new: bool = False) -> None:
    """Start the thread, unless there is nobody to watch.

    ``is_new`` says that this process has just made the group. Else there may be a
    watcher: it runs, or it is that of a parent, whose forked child is no rank.
    """
    global _running  # noqa: PLW0603
    import torch.distributed as dist

    if _running is not None and not is_new:
        return
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    try:
        store = dist.distributed_c10d._get_default_store().clone()
    except (AttributeError, RuntimeError) as error:
        log.info("ranks are not watched, no second connection to a store: %s", error)
        return
    own = dist.distributed_c10d.PrefixStore(_PREFIX, store)
    rank, size = dist.get_rank(), dist.get_world_size()
    _running = Watcher(own, rank, size, _options.after)
    _running.start()
    atexit.register(_end_at_exit)


def n_watched() -> int:
    """How many other ranks this one watches now; a forked child is none."""
    is_own = _running is not None and _running.is_of_this_process()
    return _running.n_met if _running is not None and is_own else 0


def end(why: str, error: BaseException | None = None) -> None:
    """Tell the others why this rank is gone, and stop."""
    global _running  # noqa: PLW0603
    leaving = _running
    if leaving is not None and leaving.is_of_this_process():
        _running = None
        atexit.unregister(_end_at_exit)
        leaving.leave(why, error)


def _end_at_exit() -> None:
    error = getattr(sys, "last_value", None)
    why = "has ended"
    if error is not None:
        why = f"{FAILED}: {type(error).__name__}: {error}".splitlines()[0]
    end(why, error)
