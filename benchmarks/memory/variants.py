"""What is compared: the pool, stock, and what users could tune or preload instead."""

from __future__ import annotations

import ctypes.util
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pai_torchacc as ptac
from pai_torchacc.bench.measure import raise_malloc_thresholds

INHERITED = ("LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_", "TCMALLOC_", "MIMALLOC_")
"""Beginnings of variables that would make stock something else; also ours and torch's
``THP_MEM_ALLOC_ENABLE``."""


class Missing(Exception):
    """A variant that is not to be had here; the text says why."""


@dataclass(frozen=True)
class Variant:
    """One way to get memory."""

    name: str
    about: str
    libraries: tuple[str, ...] = ()
    """One of these is preloaded, the first that is installed."""
    settings: Mapping[str, str] = field(default_factory=dict)
    switch_on: Callable[[], None] = lambda: None
    """Called in the child before the first tensor."""
    keeps_less: bool = False
    """It does not only place tensors, but does without some."""

    def environment(self) -> dict[str, str]:
        """The variables of a child: ours without what would tune its allocator.

        Raises
        ------
        Missing
            When none of the libraries is installed.
        """
        beginnings = (*INHERITED, "PTAC_", "THP_MEM_ALLOC")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(beginnings)}
        if self.libraries:
            found = filter(None, map(ctypes.util.find_library, self.libraries))
            library = next(found, None)
            if library is None:
                raise Missing(f"{' or '.join(self.libraries)} is not installed")
            kept["LD_PRELOAD"] = library
        return kept | dict(self.settings)

    def prepare(self) -> float:
        """Make this process one of the variant; ms that switching on took.

        Raises
        ------
        Missing
            Where it cannot be one.
        """
        if self.libraries:
            _check_preloaded(self.libraries)
        start = time.perf_counter()
        self.switch_on()
        return (time.perf_counter() - start) * 1e3


def _check_preloaded(libraries: tuple[str, ...]) -> None:
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8")
    if not any(f"/lib{name}." in mapped for name in libraries):
        raise Missing(f"the loader did not preload {' or '.join(libraries)}")


def _enable_pool() -> None:
    if not hasattr(ptac, "enable_memory_pool"):
        raise Missing("this version has no memory pool")
    handle = ptac.enable_memory_pool()
    if not handle:
        raise Missing(handle.reason)


def _enable_reuse() -> None:
    handle = ptac.enable_memory_reuse()
    if not handle:
        raise Missing(handle.reason)


VARIANTS = {
    v.name: v
    for v in (
        Variant("stock", "glibc as it comes"),
        Variant("pool", "enable_memory_pool(), nothing else", switch_on=_enable_pool),
        Variant(
            "mallopt",
            "glibc that keeps what is freed",
            switch_on=raise_malloc_thresholds,
        ),
        Variant(
            "tcmalloc",
            "preloaded, nothing released",
            libraries=("tcmalloc_minimal", "tcmalloc"),
            settings={
                "TCMALLOC_RELEASE_RATE": "0",
                "TCMALLOC_MAX_TOTAL_THREAD_CACHE_BYTES": str(1 << 30),
                "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD": str(1 << 40),
            },
        ),
        Variant(
            "jemalloc",
            "preloaded, nothing released, large blocks in the common arenas",
            libraries=("jemalloc",),
            settings={
                "MALLOC_CONF": "oversize_threshold:0,"
                "dirty_decay_ms:-1,muzzy_decay_ms:-1"
            },
        ),
        Variant(
            "reuse",
            "enable_memory_reuse(), which brings the pool along",
            switch_on=_enable_reuse,
            keeps_less=True,
        ),
    )
}
"""By name; stock, which the others are compared with, comes first."""

PLACING = tuple(name for name, v in VARIANTS.items() if not v.keeps_less)
"""What is compared unless asked otherwise: all that hold the same tensors."""

PEERS = ("mallopt", "tcmalloc", "jemalloc")
"""What the pool has to keep up with."""
