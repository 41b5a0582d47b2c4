"""``memory_pool``: large tensors come from our pool instead of fresh pages.

CPU: libc10's own imports of ``posix_memalign`` and ``free`` are pointed at the pool,
for storages of 64 KiB and more; everything else of torch's allocator stays torch's.
Where they cannot be, see :mod:`pai_torchacc.memory_pool.cpu`.

Undone by ``disable("memory_pool")``: requests go to libc at once; blocks of ours that
are still in use find their way back through us, and with the last of them nothing of
ours is left (:func:`pai_torchacc.status` says ``draining`` until then).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pai_torchacc.memory_pool import cpu

if TYPE_CHECKING:
    from pai_torchacc._options import Config


def install(c: Any, config: Config) -> str | None:
    """Have the pool be as ``config.pool`` says; the reason when it cannot."""
    if config.pool.device in (None, "cpu"):
        return cpu.install(c, config.pool)
    cpu.remove(c)
    return "no pool for this device yet"


def remove(c: Any) -> None:
    """No new block; what is in use comes back when it is freed."""
    cpu.remove(c)


def status(c: Any) -> dict[str, Any]:
    """How the pool is reached, and what is still on its way back."""
    return cpu.status(c)


def about(config: Config) -> str:
    """Device and policy, for the log."""
    return f"device {config.pool.device or 'any'}, {config.pool.policy}"
