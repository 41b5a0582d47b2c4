"""``memory_pool``: large tensors come from our pool instead of fresh pages.

CPU: libc10's own imports of ``posix_memalign`` and ``free`` are pointed at the pool,
for storages of 64 KiB and more; everything else of torch's allocator stays torch's.
Where they cannot be, see :mod:`pai_torchacc.memory_pool.cpu`.

CUDA: torch's own allocator is tuned, or replaced by a pool of ours where that is asked
for by ``device="cuda"``; see :mod:`pai_torchacc.memory_pool.cuda`.

Undone by ``disable("memory_pool")``: requests go to libc at once; blocks of ours that
are still in use find their way back through us, and with the last of them nothing of
ours is left (:func:`pai_torchacc.status` says ``draining`` until then).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _options, _switch
from pai_torchacc._config import PoolOptions
from pai_torchacc._features import register
from pai_torchacc._switch import Handle
from pai_torchacc.memory_pool import cpu, cuda

if TYPE_CHECKING:
    from pai_torchacc._config import Config


def install(c: Any, config: Config) -> str | None:
    """Have the pool be as ``config.pool`` says; the reason when it cannot.

    With ``device=None`` the CPU's pool decides; CUDA is tuned where it is there.
    """
    device = config.pool.device
    if device == "cuda":
        cpu.remove(c)
        return cuda.install(c, sys.modules["torch"], config.pool)
    trouble = cpu.install(c, config.pool)
    if device is None and trouble is None:
        cuda.tune(sys.modules["torch"])
    else:
        cuda.remove(c)
    return trouble


def remove(c: Any) -> None:
    """No new block; what is in use comes back when it is freed."""
    cpu.remove(c)
    cuda.remove(c)


def status(c: Any) -> dict[str, Any]:
    """How the pool is reached, what is done for CUDA, what is still on its way back."""
    is_asked = "memory_pool" in _switch.current().features
    return cpu.status(c) | cuda.status(is_asked)


def about(config: Config) -> str:
    """Device and policy, for the log."""
    return f"device {config.pool.device or 'any'}, {config.pool.policy}"


def document() -> dict[str, Any]:
    """The CPU pool's statistics."""
    from pai_torchacc.memory_pool import statistics

    return {"memory": {"cpu": statistics.memory_stats("cpu")}}


def lines(content: dict[str, Any]) -> list[str]:
    """What the pool holds."""
    cpu_pool = content["memory"]["cpu"]
    if not cpu_pool.get("allocation.all.allocated"):
        return []
    parts = {
        "in use": cpu_pool["allocated_bytes.all.current"],
        "at most": cpu_pool["allocated_bytes.all.peak"],
        "held": cpu_pool["reserved_bytes.all.current"],
        "given back": cpu_pool["ptac.purged_bytes"],
    }
    said = ", ".join(f"{n / 2**20:.1f} MiB {what}" for what, n in parts.items())
    return [f"memory pool: {cpu_pool['allocation.all.allocated']} storages; {said}"]


def enable_memory_pool(
    device: str | None = None,
    *,
    cap: int | None = None,
    reserve: int | None = None,
    trim: Literal["auto", "never"] | int = "auto",
    policy: str = "exact_fit",
    fill: Literal["zero", "junk"] | None = None,
    history: int = 0,
) -> Handle:
    """Have large tensors come from a pool: no page faults in steady state, less memory.

    Part of a bare :func:`enable`. On the CPU, storages of 64 KiB and more are served
    from one arena of the process, for all threads, from now on; tensors that exist
    already stay where they are, and are freed as ever. Numbers are not touched.

    Parameters
    ----------
    device : {None, "cpu", "cuda"}
        None: the CPU's pool, and torch's own CUDA allocator at its best setting
        (expandable segments) where nothing stands against that. ``"cuda"``: a pool of
        ours below torch instead, to be asked for before CUDA is initialised;
        :mod:`pai_torchacc.memory_pool.cuda` says what it then lacks. The status has
        what is done for CUDA, or why nothing is.
    cap : int, optional
        Bytes that the pool may hold. Beyond it a request fails with torch's own error
        for lack of memory, after the pool has given back what it can. Default: nine
        tenths of the control group's limit; no cap where there is none.
    reserve : int, optional
        Bytes to bring into memory at once, which go back like other memory that no
        tensor uses (see ``trim``). Default: none; pages come at first touch.
    trim : {"auto", "never"} or int
        When memory that no tensor uses is given back to the system: after 30 seconds
        without a request, or so many; when memory is short; at the cap; and by
        :func:`empty_cache`. ``"never"``: only by the last three.
    policy : {"exact_fit", "best_fit", "first_fit"}
        Which free block a request is cut from; ``csrc/mem/README.md`` describes them.
    fill : {"zero", "junk"}, optional
        For debugging: what new storages of all sizes hold, instead of what was there.
    history : int
        Events to remember for :func:`memory_snapshot`.

    Returns
    -------
    Handle
        Not active, with its reason, where torch's allocator cannot be reached.

    Raises
    ------
    ValueError, TypeError
        An option is wrong; the text names what it may be.
    """
    options = PoolOptions(
        device=None if device is None else _options.device_checked(device),
        cap=cap,
        reserve=0 if reserve is None else reserve,
        trim=trim,
        policy=policy,
        fill=fill,
        history=history,
    )
    return _switch.enable_one("memory_pool", pool=_options.pool_checked(options))


register(__name__, "memory_pool", rank=2, is_in_bare_enable=True, options="pool")
