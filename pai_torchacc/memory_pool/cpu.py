"""The CPU's pool: switched on in the extension, and proven to be in use.

Ways to torch's allocator, the first that is proven to work is taken:

``imports``
    libc10's imports of ``posix_memalign`` and ``free``. Leaves no trace when undone.
``object``
    An allocator object of our own, registered with c10, for builds whose libc10 holds a
    malloc of its own. Storages made meanwhile keep it for life.
``mallopt``
    No pool: glibc's malloc is told to keep what is freed. No page faults either, but
    more memory (up to three times for chains of large tensors), in the main thread
    only. When undone, glibc's numbers are its defaults again, but fixed from then on.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host
from pai_torchacc._config import FILLS, NO_CAP

if TYPE_CHECKING:
    from pai_torchacc._config import PoolOptions

IDLE_S = 30
"""Seconds without a request after which memory that nobody uses is given back."""

CAP_SHARE = 0.9
"""Of the control group's limit: the pool's cap where the user names none."""

LEAST_BYTES = 64 << 10
"""Of a storage that comes from the pool."""

_KEEP = "mallopt"

_installed: list[tuple[PoolOptions | None, str]] = []
"""Options and way; no options while that way is being tried."""

_wanted_by: set[str] = set()
"""Switches that need the pool; it is on while there is one."""


def install(c: Any, options: PoolOptions, by: str = "memory_pool") -> str | None:
    """Switch the pool on, or give it other options; None, or why it is inactive."""
    _wanted_by.add(by)  # before it is: an exception is followed by remove()
    trouble = _install(c, options)
    if trouble is not None:
        _wanted_by.clear()
    return trouble


def _install(c: Any, options: PoolOptions) -> str | None:
    if _installed and _installed[0][0] == options:
        return None
    if os.environ.get("THP_MEM_ALLOC_ENABLE") == "1":
        return "THP_MEM_ALLOC_ENABLE=1 asks torch for huge pages of its own"
    said = []
    for way in [_installed[0][1]] if _installed else _ways(c):
        _installed[:] = [(None, way)]
        trouble = _switch_on(c, way, options)
        if trouble is None:
            _installed[:] = [(options, way)]
            return None
        _undo(c, way)
        said.append(f"{way}: {trouble}")
    return "; ".join(said)


def _undo(c: Any, way: str) -> None:
    if way == _KEEP:
        c.malloc_keeps(False)
    else:
        c.pool_disable()
    _installed.clear()


def remove(c: Any, by: str = "memory_pool") -> None:
    """Requests go to libc from now on, unless another switch needs the pool."""
    _wanted_by.discard(by)
    if _installed and not _wanted_by:
        _undo(c, _installed[0][1])


def status(c: Any) -> dict[str, Any]:
    """``via``: the way in use; ``draining``: blocks in use of a pool that is off."""
    state, n_blocks = c.pool_state()
    found: dict[str, Any] = {"via": _installed[0][1]} if _installed else {}
    return found | ({"draining": n_blocks} if state == "draining" else {})


def _ways(c: Any) -> list[str]:
    return [*c.pool_routes(), _KEEP]


def _switch_on(c: Any, way: str, options: PoolOptions) -> str | None:
    if way == _KEEP:
        if options.cap or options.fill or options.reserve or options.history:
            return "it has neither cap, fill, reserve nor history"
        return None if c.malloc_keeps(True) else "the C library is not glibc"
    cap = options.cap
    if cap is None:
        limit = c.memory_limit()
        cap = NO_CAP if limit is None else int(limit * CAP_SHARE)
    trim = options.trim
    idle_s = trim if isinstance(trim, int) else {"auto": IDLE_S, "never": -1}[trim]
    fill = FILLS.index(options.fill)
    trouble = c.pool_enable(
        way, options.policy, cap, options.reserve, options.history, idle_s, fill
    )
    if trouble is None and not _host.aside(_is_in_use, c):
        trouble = "torch's storages do not pass through it"
    return trouble


def _is_in_use(c: Any, torch: Any) -> bool:
    """Whether a storage that torch makes now is asked of the pool, and given back."""
    c.pool_begin_probe()
    try:
        with contextlib.suppress(RuntimeError):  # no memory, but it was asked for
            torch.empty(LEAST_BYTES, dtype=torch.uint8, device="cpu")
    finally:
        is_ours = c.pool_end_probe()
    return is_ours
