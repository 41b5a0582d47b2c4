"""``memory_reuse``: lower peak memory in training, with the same bits.

Default hooks of torch's see every tensor that autograd saves for backward. Large ones
whose contents say so are packed without loss (masks and the noise of dropouts to bits,
indices to few bytes, tensors with many zeros to the others); results of cheap operators
are forgotten and computed again from what is saved anyway. Torch's own checks and
errors stay. Steps that repeat are placed by a plan, for which the CPU's memory pool is
on as long as this switch is.

Undone by ``disable("memory_reuse")``; what is held can still be restored.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host, _switch
from pai_torchacc._config import PoolOptions
from pai_torchacc._features import register
from pai_torchacc._ledger import Ledger
from pai_torchacc._switch import Handle
from pai_torchacc.memory_pool import cpu

if TYPE_CHECKING:
    from pai_torchacc._config import Config

NAME = "memory_reuse"

_ledger = Ledger()


def install(c: Any, config: Config | None = None) -> str | None:
    """Switch on; the reason when that cannot be."""
    trouble = cpu.install(c, config.pool if config else PoolOptions(), NAME)
    if trouble is not None:
        return trouble
    if c.saved_is_on():
        from pai_torchacc.memory_reuse import hooks

        hooks.raise_in_this_thread(c)  # which was there before another switched on
        return None
    if not _host.has_lean_paths():
        trouble = "this torch does not let us look into tensors"
    else:
        trouble = _install(c)
    if trouble is not None:
        cpu.remove(c, NAME)
    return trouble


def _install(c: Any) -> str | None:
    from pai_torchacc.memory_reuse import (
        data_swaps,
        hooks,
        saved_storage,
        steps,
        version_errors,
    )

    if not saved_storage.install(c):
        return "this torch does not tell who has a tensor's memory"
    if not c.saved_is_possible():
        return "this torch or this CPU does not offer tensor_data"
    c.lend(
        restore=saved_storage.restore,
        complain=version_errors.text,
        leave=lambda: hooks.lower_in_this_thread(c),
        current=data_swaps.current,
        saves_outputs=data_swaps.saves_outputs,
        consider=saved_storage.consider,
    )
    hooks.install(c, _ledger)
    hooks.raise_in_this_thread(c)
    steps.install(c)
    return None


def remove(c: Any) -> None:
    """Switch off. What is held can still be restored.

    Threads that have our hooks lose them when they next save something or end; until
    then torch's transforms go on taking them out of their way.
    """
    from pai_torchacc.memory_reuse import hooks, steps

    steps.remove(c)
    cpu.remove(c, NAME)
    c.saved_remove()
    hooks.lower_in_this_thread(c)
    _ledger.undo()
    hooks.leave_transforms_alone(c)


def about(config: Config) -> str:
    """For the log."""
    return "same bits"


def saved_bytes(c: Any) -> dict[str, dict[str, int]]:
    """By mechanism, and for ``all``: bytes saved now, at most, in all, and how often.

    Keys of each are ``current``, ``peak``, ``total`` and ``count``.
    """
    names = ("current", "peak", "total", "count")
    return {
        mechanism: dict(zip(names, row, strict=True))
        for mechanism, row in c.saved_bytes().items()
    }


def reasons() -> dict[str, int]:
    """Why large saved tensors were kept as they are, and how many."""
    storage = _loaded("saved_storage")
    return dict(storage.kept) if storage else {}


def document() -> dict[str, Any]:
    """The most that each mechanism saved at a time, and why tensors were kept."""
    c = _host.loaded()
    saved = saved_bytes(c) if c is not None else {}
    saved.pop("all", None)
    peaks = {what: row["peak"] for what, row in saved.items() if row["count"]}
    return {"memory": {"cpu": {"saved_bytes": peaks, "kept": reasons()}}}


def lines(content: dict[str, Any]) -> list[str]:
    """What was saved, or why nothing was."""
    cpu_memory = content["memory"]["cpu"]
    saved = [
        f"{n / 2**20:.1f} MiB {what}" for what, n in cpu_memory["saved_bytes"].items()
    ]
    if saved:
        return [f"memory reuse, at most at a time: {', '.join(saved)}"]
    if not content["switches"][NAME]["active"]:
        return []
    kept = [f"{n} {reason}" for reason, n in cpu_memory["kept"].items()]
    why = ", ".join(kept) or "what autograd saved was too little"
    return [f"memory reuse let go of nothing: {why}"]


def reset(c: Any) -> None:
    """Count from here."""
    c.saved_bytes_reset()
    if storage := _loaded("saved_storage"):
        storage.kept.clear()


def remarks() -> list[str]:
    """What others had patched when we took ours back."""
    hooks = _loaded("hooks")
    return [*_ledger.remarks, *(hooks.remarks() if hooks else [])]


def _loaded(name: str) -> Any:
    """A module of ours that needs torch, if it has been in use."""
    return sys.modules.get(f"{__name__}.{name}")


def enable_memory_reuse() -> Handle:
    """Lower the peak memory of training, with the same bits.

    By name only. Cheap tensors that autograd saves are computed again instead of kept,
    masks and indices are packed, and repeated steps are placed by a plan. The CPU's
    memory pool is on as long as this is. Holds for this thread and those that start
    from now on.
    """
    return _switch.enable_one(NAME)


register(__name__, NAME, rank=3, options="pool")
