"""The switch ``watch_ranks``: who died, who is missing, in which collective.

A thread of each rank does it, see :mod:`.watcher`; it begins when the default process
group is made, or at once where there is one, and ends with the group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pai_torchacc import _frames, _options, _switch
from pai_torchacc._config import Config, WatchOptions
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.fusion.foreign import Yielding

_ledger = Yielding()


def install(c: Any, config: Config) -> str | None:
    """Watch from now on, with these options."""
    import torch.distributed as dist

    if not dist.is_available():
        return "this torch is built without torch.distributed"
    from pai_torchacc.distributed import watcher

    watcher.options_are(config.watch)
    if not len(_ledger):
        for module in (dist, dist.distributed_c10d):
            for name, around in _STAND_INS.items():
                _ledger.set_attribute(module, name, around(getattr(module, name)))
    if dist.is_initialized():
        watcher.begin()
    return None


def remove(c: Any) -> None:
    """Nobody is watched, and this rank is no longer expected to tell where it is."""
    from pai_torchacc.distributed import watcher
    from pai_torchacc.distributed.watching_thread import UNWATCHED

    watcher.end(UNWATCHED)
    _ledger.undo()


def about(config: Config) -> str:
    """After how many seconds a wait is explained."""
    return f"after {config.watch.after:g} s"


def remarks() -> list[str]:
    """What others have changed, and we left as it is."""
    return list(_ledger.remarks)


def status(c: Any) -> dict[str, Any]:
    """How many other ranks are watched now: some while there is a process group."""
    if not len(_ledger):
        return {}
    from pai_torchacc.distributed import watcher

    return {"watched": watcher.n_watched()}


def watch_ranks(after: float = 10.0) -> Handle:
    """Say which rank died or is missing, and in which collective the others wait.

    By name; ``python -m pai_torchacc launch`` switches it on in every rank. Lines in
    the log (``pai_torchacc``, level ERROR) are all it does: it ends no process and no
    collective, and never changes a number.

    - A rank of the same machine that is killed, fails, or is stopped while others wait
      is named within a second: by the system, not by a time-out. Of ends only the first
      is named; a launcher that ends the other ranks before they can speak names it too.
    - Ranks that all others wait for longer than ``after`` are named with the collective
      that they have not reached; so are ranks that are in another one, have ended, or
      have fallen silent.

    Until it is switched off, ``torch.distributed.init_process_group`` and
    ``destroy_process_group`` have stand-ins. A thread of each rank tells the process
    group's store four times a second where its rank is, over a connection of its own,
    and polls the other processes of the machine. Names of collectives come from torch's
    flight recorder, which keeps them for Gloo unless ``TORCH_FR_BUFFER_SIZE`` is 0;
    without it ends are named, and neither waits nor ranks that are stopped.

    Parameters
    ----------
    after : float
        Seconds, more than 0. A rank that computes or saves for so long while others
        wait is named too: a line in the log, once for each collective. It takes a
        second more where half of this is less.

    Returns
    -------
    Handle
        As a context manager it restores at its end what was on before.

    Raises
    ------
    TypeError, ValueError
        ``after`` is no such number.
    """
    options = _options.watch_checked(WatchOptions(after))
    return _switch.enable_one("watch_ranks", watch=options)


def _begins(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        try:
            result = stock(*args, **kwargs)
        except BaseException as error:
            _frames.hide(error)
            raise
        from pai_torchacc.distributed import watcher

        watcher.begin(is_new=True)
        return result

    return init_process_group


def _ends(stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
        import torch.distributed as dist

        from pai_torchacc.distributed import watcher

        try:
            result = stock(*args, **kwargs)
        except BaseException as error:
            _frames.hide(error)
            raise
        if not dist.is_initialized():  # it was not a part of it only
            watcher.end("has left its process group")
        return result

    return destroy_process_group


_STAND_INS = {"init_process_group": _begins, "destroy_process_group": _ends}

register(__name__, "watch_ranks", rank=7, options="watch")
