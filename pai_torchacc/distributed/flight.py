"""Where this rank is in its collectives, by torch's flight recorder.

The recorder keeps entries of collectives for whoever asks later; Gloo has one unless
``TORCH_FR_BUFFER_SIZE`` is 0. Its status costs a tenth of a millisecond, its entries
50 microseconds each, with Python's lock held.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any

_QUICK = 256
"""Entries that are read in a hundredth of a second."""


@dataclass(frozen=True)
class Place:
    """The last collective that a process group of this rank has begun."""

    begun: int
    done: int

    @property
    def is_waiting(self) -> bool:
        """Whether it has not ended."""
        return self.begun > self.done


def places() -> dict[str, Place]:
    """By process group; empty where there is no recorder, or nothing in it."""
    found = _ask(False).get("pg_status", {})
    return {
        group: Place(
            int(entry.get("last_enqueued_collective", -1)),
            int(entry.get("last_completed_collective", -1)),
        )
        for group, entry in found.items()
    }


def is_quick() -> bool:
    """Whether reading a name takes little time."""
    text = os.environ.get("TORCH_FR_BUFFER_SIZE", "")
    return text.isdecimal() and int(text) <= _QUICK


def name(group: str, number: int) -> str:
    """A collective in words, such as ``gloo:all_reduce 17 (float32 [10])``."""
    for entry in reversed(_ask(True).get("entries", [])):
        is_it = entry.get("collective_seq_id") == number
        if is_it and str(entry.get("pg_id")) == group:
            kinds = ", ".join(map(str, entry.get("input_dtypes", [])))
            sizes = ", ".join(map(str, entry.get("input_sizes", [])))
            return f"{entry.get('profiling_name')} {number} ({kinds} {sizes})"
    return f"collective {number}"


def _ask(with_entries: bool) -> dict[str, Any]:
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return {}
    found: dict[str, Any] = json.loads(dump(with_entries, False))
    return found
