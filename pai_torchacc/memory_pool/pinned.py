"""Pinned host memory from one registration, cut to size.

``tensor.pin_memory()`` and ``DataLoader(pin_memory=True)`` take theirs from torch's own
host allocator, which offers no place for another one (2.11 to 2.13), and rounds every
block up to a power of two. This is for programs that ask for it::

    from pai_torchacc.memory_pool import pinned

    pinned.reserve(8 << 30)  # touched by several threads at once, registered once
    batch = pinned.empty((256, 3, 224, 224))
    batch.to("cuda", non_blocking=True)

A tensor's memory is used again only after the device has been waited for, which happens
when there is no other room, so that transfers on their way are safe.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pai_torchacc import _host

if TYPE_CHECKING:
    import torch

_returned: list[int] = []
"""Blocks whose tensors are gone; transfers may still be on their way."""


def reserve(n_bytes: int, threads: int | None = None) -> None:
    """Bring so much host memory in and register it with the driver.

    Parameters
    ----------
    n_bytes : int
        Rounded up to 2 MiB.
    threads : int, optional
        That touch it at once. Default: as many as there are processors, at most 16.

    Raises
    ------
    RuntimeError
        There is no driver, no memory, or a pinned pool already.
    """
    n_threads = threads or min(os.cpu_count() or 1, 16)
    reason = _host.load().pinned_open(n_bytes, n_threads)
    if reason is not None:
        raise RuntimeError(reason)


def empty(shape: Sequence[int], dtype: torch.dtype | None = None) -> torch.Tensor:
    """A CPU tensor in pinned memory, with whatever was there before.

    Raises
    ------
    RuntimeError
        There is no room left, also after waiting for the device.
    """
    import torch

    dtype = dtype or torch.get_default_dtype()
    n_used = torch.Size(shape).numel() * dtype.itemsize
    n_bytes = max(n_used, 1)
    c = _host.load()
    address = c.pinned_alloc(n_bytes)
    if address is None:
        _take_back(c, torch)
        address = c.pinned_alloc(n_bytes)
    if address is None:
        raise RuntimeError(f"the pinned pool has no room for {n_bytes} bytes")
    memory = (ctypes.c_char * n_bytes).from_address(address)
    weakref.finalize(memory, _returned.append, address)
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    return flat[:n_used].view(dtype).view(tuple(shape))


def release() -> bool:
    """Give everything back; False while tensors use some of it."""
    import torch

    c = _host.load()
    _take_back(c, torch)
    return c.pinned_close()


def _take_back(c: Any, torch: Any) -> None:
    blocks = list(_returned)
    if blocks and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    for address in blocks:
        _returned.remove(address)
        c.pinned_free(address)
