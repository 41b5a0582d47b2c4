"""What users call to switch the pool on."""

from __future__ import annotations

from typing import Literal

from pai_torchacc import _options, _switch
from pai_torchacc._config import PoolOptions
from pai_torchacc._switch import Handle


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
