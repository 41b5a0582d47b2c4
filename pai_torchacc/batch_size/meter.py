"""Memory of the process that a trial runs in: what is in use, and its limit."""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pai_torchacc import _switch, memory_pool
from pai_torchacc.batch_size import limits
from pai_torchacc.memory_pool.statistics import empty_cache, memory_stats


class Leak:
    """How much more steps have to leave behind to count as leaking.

    ``COUNTED`` is for storages in use, ``SEEN`` for what the process holds, where
    allocators keep now more, now less: a share of what a step needs, and bytes.
    """

    COUNTED = 0.002, 64 << 10
    SEEN = 0.1, 1 << 20


def leak(left: list[int], need: int, least: tuple[float, int]) -> int:
    """Bytes by which memory grows in a step; 0 where it does not.

    Each of the last two steps has to leave this much more than the one before.
    """
    share, n_bytes = least
    grown = min(b - a for a, b in itertools.pairwise(left[-3:]))
    return grown if grown >= max(share * need, n_bytes) else 0


@contextmanager
def pool() -> Iterator[bool]:
    """Have the memory pool on for so long; whether that is possible."""
    logging.disable(logging.INFO)
    if _switch.is_active("memory_pool"):
        yield True
        return
    with memory_pool.enable_memory_pool() as handle:
        yield bool(handle)


def in_use(when: str) -> int:
    """Bytes of storages in use and of everything that is not the pool's."""
    pool = memory_stats("cpu")
    reserved = pool.get("reserved_bytes.all.current", 0)
    in_use = pool.get(f"allocated_bytes.all.{when}", 0)
    return in_use + limits.anonymous() - reserved


def settle() -> int:
    """Give back what nothing uses, so that growth counts from there; bytes held."""
    empty_cache("cpu")
    with suppress(AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):  # then the peak is that of the fork, if steps need less
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return limits.anonymous()


def cap(most: int) -> None:
    """Have requests beyond these bytes fail instead of bringing the system down."""
    own = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in own if limit != resource.RLIM_INFINITY]
    cap = min([limits.status()["VmData"] + _stacks() + most, *known])
    resource.setrlimit(resource.RLIMIT_DATA, (cap, own[1]))


def _stacks() -> int:
    """Bytes of addresses for OpenMP's workers, who touch little of them."""
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    known = stack if stack != resource.RLIM_INFINITY else 8 << 20
    return known * (len(os.sched_getaffinity(0)))


def cuda_in_use() -> Any:
    """``torch.cuda`` once the step has initialised it, else False."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() else False


def cuda_memory(cuda: Any, budget: float) -> dict[str, int]:
    """Bytes of the device that is nearest to its limit, and that limit."""

    def figures(device: int) -> dict[str, int]:
        free, _ = cuda.mem_get_info(device)
        limit = int(budget * (free + cuda.memory_reserved(device)))
        peak, left = cuda.max_memory_allocated(device), cuda.memory_allocated(device)
        return {"peak": peak, "left": left, "limit": limit}

    every = [figures(device) for device in range(cuda.device_count())]
    return max(every, key=lambda found: found["peak"] / max(1, found["limit"]))
