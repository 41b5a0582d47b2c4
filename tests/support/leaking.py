"""Whether work leaves memory behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE = 4096


SLACK_BYTES = 2 << 20
"""What allocators may keep; a leak of one tensor object a call would be far more."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def settle() -> None:
    """Free what nobody needs, names in Python's cache of attributes among it."""
    gc.collect()
    clear = getattr(sys, "_clear_internal_caches", None) or sys._clear_type_cache
    clear()


def assert_flat(work: Callable[[], Any], times: int) -> None:
    """Do the work so often, after warming up: nothing grows with the calls.

    What grows does so in the second round too; the table of Python's interned strings
    (3.8 MB) is made anew in one of them, after as many strings as there are.
    """
    for _ in range(times // 10):
        work()
    grown = []
    for _ in range(2):
        settle()
        blocks, size = sys.getallocatedblocks(), resident_bytes()
        for _ in range(times):
            work()
        settle()
        assert sys.getallocatedblocks() - blocks < times // 10
        grown.append(resident_bytes() - size)
        if grown[-1] < SLACK_BYTES:
            return
    raise AssertionError(f"grown by {grown} bytes")
