"""The CPU's pool: switched on in the extension, and proven to be in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pai_torchacc import _host
from pai_torchacc._options import FILLS, NO_CAP

if TYPE_CHECKING:
    from pai_torchacc._options import PoolOptions

IDLE_S = 30
"""Seconds without a request after which memory that nobody uses is given back."""

CAP_SHARE = 0.9
"""Of the control group's limit: the pool's cap where the user names none."""

_installed: list[PoolOptions] = []


def install(c: Any, options: PoolOptions) -> str | None:
    """Switch the pool on, or give it other options; None, or why it is inactive."""
    if _installed == [options]:
        return None
    trouble = c.pool_enable(
        options.policy,
        _cap(c, options.cap),
        options.reserve,
        options.history,
        _idle_s(options.trim),
        FILLS.index(options.fill),
    )
    if trouble is None and not _host.aside(_is_in_use, c):
        c.pool_disable()
        trouble = "torch's CPU storages do not pass through libc10's imports"
    _installed[:] = [options] if trouble is None else []
    return trouble


def remove(c: Any) -> None:
    """Requests go to libc from now on."""
    _installed.clear()
    c.pool_disable()


def status(c: Any) -> dict[str, Any]:
    """``draining``: blocks of a pool that is off, still in use."""
    state, n_blocks, _ = c.pool_state()
    return {"draining": n_blocks} if state == "draining" else {}


def _cap(c: Any, asked: int | None) -> int:
    if asked is not None:
        return asked
    limit = c.memory_limit()
    return NO_CAP if limit is None else int(limit * CAP_SHARE)


def _idle_s(trim: str | int) -> int:
    if isinstance(trim, int):
        return trim
    return IDLE_S if trim == "auto" else -1


def _is_in_use(c: Any, torch: Any) -> bool:
    """Whether a storage that torch makes now is the pool's."""
    probe = torch.empty(1 << 18, dtype=torch.float32, device="cpu")
    return c.pool_owns(probe.data_ptr())
