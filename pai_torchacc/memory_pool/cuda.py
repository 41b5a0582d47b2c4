"""CUDA memory: torch's own allocator at its best setting, or a pool of ours.

``tune`` (the default, with ``device=None``)
    torch's caching allocator keeps everything it guarantees and is told to use
    expandable segments, which leave hardly any memory reserved but unusable. Not done
    where that is known to break what worked: see :func:`_stands_against_tuning`.
``pool`` (``device="cuda"``, before CUDA is initialised)
    Our stream pool (``csrc/mem/cuda/stream_pool.h``) by torch's interface for pluggable
    allocators. What that interface lacks is lacking then: sharing CUDA tensors with
    other processes, peer access, torch's own statistics and snapshots (ours are in
    :func:`pai_torchacc.memory_stats`), checkpoints of graph pools.

Undone by :func:`remove`: the setting at once. A pool that CUDA was initialised with
cannot be taken out, since torch exchanges no allocator that is in use; the status says
so.

Source: docs.pytorch.org/docs/stable/notes/cuda.html, "Memory management".
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pai_torchacc._config import NO_CAP

if TYPE_CHECKING:
    from pai_torchacc._config import PoolOptions

TUNE, POOL = "tune", "pool"

SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Where torch reads its allocator's settings from, the first that is set."""

DRIVER_FILES = ("/dev/nvidiactl", "/dev/dxg", "/dev/nvhost-ctrl")
"""What a machine with a driver has: Linux, its subsystem under Windows, Jetson."""


@dataclass
class _State:
    tier: str | None = None
    reason: str | None = None
    stock: Any = None
    """torch's allocator, while the pool stands in for it."""
    stays: bool = False
    """The pool was switched off too late to be taken out."""


_state = _State()


def tune(torch: Any) -> str | None:
    """Have torch's own allocator use expandable segments; None, or why not."""
    if _state.tier is None:
        _state.reason = _stands_against_tuning(torch)
        if _state.reason is None:
            _state.tier = TUNE  # before it is, so that it is undone
            _set(torch, ",".join(filter(None, (_users_settings(), _EXPANDABLE))))
    return _state.reason


_EXPANDABLE = "expandable_segments:True"


def _set(torch: Any, settings: str) -> None:
    torch._C._accelerator_setAllocatorSettings(settings)


def _users_settings() -> str:
    return next((os.environ[name] for name in SETTINGS if os.environ.get(name)), "")


def _stands_against_tuning(torch: Any) -> str | None:
    """Why expandable segments are not to be switched on here, or None."""
    if reason := _lacks_cuda(torch):
        return reason
    settings = _users_settings()
    if "expandable_segments" in settings or "backend" in settings:
        return f"{' or '.join(SETTINGS)} decides: {settings}"
    if (backend := torch._C._cuda_getAllocatorBackend()) != "native":
        return f"torch's allocator is {backend}"
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        return "this torch takes no settings while it runs"
    if not _may_share_handles():
        return (
            "CUDA tensors could no longer be shared with other processes here: "
            "pidfd_getfd, which expandable segments need for that, is not permitted"
        )
    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and _has_network_cards():
        return (
            "network cards that read CUDA memory directly may not take memory of "
            "several handles"
        )
    if _has_private_pools(torch):
        return "private memory pools are in use"
    return None


def _lacks_cuda(torch: Any) -> str | None:
    if not torch.cuda._is_compiled() or torch.version.hip:
        return "this torch has no CUDA"
    if not any(Path(f).exists() for f in DRIVER_FILES):
        return "no NVIDIA driver: there is none of " + ", ".join(DRIVER_FILES)
    return None


def _may_share_handles() -> bool:
    """Whether one process may take a file from another, as torch does to share."""
    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = 0
    if scope > 0 and os.geteuid() != 0:
        return False
    try:
        process = os.pidfd_open(os.getpid())
        mine = os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return False
    taken = ctypes.CDLL(None, use_errno=True).syscall(438, process, mine, 0)
    for descriptor in (process, mine, taken):
        if descriptor >= 0:
            os.close(descriptor)
    return taken >= 0


def _has_network_cards() -> bool:
    try:
        return any(Path("/sys/class/infiniband").iterdir())
    except OSError:
        return False


def _has_private_pools(torch: Any) -> bool:
    segments = torch.cuda.memory_snapshot() if torch.cuda.is_initialized() else []
    return any(tuple(s.get("segment_pool_id", (0, 0))) != (0, 0) for s in segments)


def install(c: Any, torch: Any, options: PoolOptions) -> str | None:
    """Have our pool serve torch's CUDA memory; None, or why it cannot."""
    if _state.tier == POOL:
        _state.stays = False
        return None
    remove(c)
    cap = NO_CAP if options.cap is None else options.cap
    _state.reason = _stands_against_pool(torch) or c.cuda_pool_open(
        options.policy, cap, options.history
    )
    if _state.reason is None:
        _state.reason = _change(c, torch)
    return _state.reason


def _stands_against_pool(torch: Any) -> str | None:
    if not torch.cuda._is_compiled() or torch.version.hip:
        return "this torch has no CUDA"
    if torch.cuda.is_initialized():
        return "CUDA is already initialised: enable the pool before the first CUDA call"
    if (backend := torch._C._cuda_getAllocatorBackend()) != "native":
        return f"torch's allocator is {backend}"
    return None


def _change(c: Any, torch: Any) -> str | None:
    entries = c.cuda_pool_entries()
    ours = torch._C._cuda_customAllocator(entries.pop("alloc"), entries.pop("free"))
    for name, address in entries.items():
        is_pool = name in ("begin_allocate_to_pool", "release_pool")
        getattr(ours, f"set_{name}" if is_pool else f"set_{name}_fn")(address)
    stock = torch._C._cuda_getAllocator()
    try:
        torch._C._cuda_changeCurrentAllocator(ours)
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    _state.tier, _state.stock = POOL, stock
    return None


def remove(c: Any) -> None:
    """Undo what can be; a pool that torch has begun to use stays."""
    torch = sys.modules.get("torch")
    if _state.tier == TUNE and torch is not None:
        _set(torch, _users_settings())
    if _state.tier == POOL and torch is not None:
        try:
            torch._C._cuda_changeCurrentAllocator(_state.stock)
        except RuntimeError:
            _state.stays = True
            return
    _state.tier = _state.reason = _state.stock = None
    _state.stays = False


def status(is_asked: bool) -> dict[str, Any]:
    """What is done for CUDA: tier, whether it is active or why not, retries."""
    if _state.tier is None and not (is_asked and _state.reason):
        return {}
    entry: dict[str, Any] = {
        "tier": _state.tier,
        "active": _state.tier is not None,
        "reason": "torch cannot exchange an allocator that is in use"
        if _state.stays
        else _state.reason,
    }
    if _state.tier == TUNE and (torch_cuda := initialized()):
        retries = torch_cuda.memory_stats().get("num_alloc_retries", 0)
        entry["num_alloc_retries"] = retries
    return {"cuda": entry}


def has_pool() -> bool:
    """Whether CUDA memory is ours to tell about."""
    return _state.tier == POOL


def index_of(device: object) -> int:
    """The number of a device, -1 for the CPU; the current one where none is named."""
    kind, _, text = str(device).partition(":")
    if kind == "cpu":
        return -1
    if text:
        return int(text)
    torch_cuda = initialized()
    return torch_cuda.current_device() if torch_cuda else 0


def initialized() -> Any:
    """``torch.cuda`` where it is in use, or None."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch and torch.cuda.is_initialized() else None
