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


_names: dict[str, str] = {}
"""Of groups by the recorder's numbers, in which every process counts for itself."""

_asked: dict[str, int] = {}
"""For which of its collectives a group without a name was looked for last."""


def places() -> dict[str, Place]:
    """By name of process group, which all its ranks have in common.

    Also of groups that have been destroyed. Empty where there is no recorder, or
    nothing in it.
    """
    found = {
        number: Place(
            max(0, int(entry.get("last_enqueued_collective", 0))),
            max(0, int(entry.get("last_completed_collective", 0))),
        )
        for number, entry in _ask(False).get("pg_status", {}).items()
    }
    new = {n: p.begun for n, p in found.items() if n not in _names and p.begun}
    if any(_asked.get(n) != begun for n, begun in new.items()):
        _asked.update(new)
        for entry in _ask(True).get("entries", []):
            _names[str(entry.get("pg_id"))] = _group_of(entry)
    # A name that was used again is that of the latest group.
    return {_names[n]: found[n] for n in sorted(found, key=int) if n in _names}


def ranks_of(group: str) -> list[int]:
    """The ranks of a process group of this name, none where it has been destroyed."""
    import torch.distributed as dist

    world = getattr(dist.distributed_c10d, "_world", None)
    for known, called in list(getattr(world, "pg_names", {}).items()):
        if called == group:
            return sorted(world.pg_group_ranks.get(known, {}))
    return []


def is_quick() -> bool:
    """Whether reading a name takes little time."""
    text = os.environ.get("TORCH_FR_BUFFER_SIZE", "")
    return text.isdecimal() and int(text) <= _QUICK


def name(group: str, number: int) -> str:
    """A collective in words, such as ``gloo:all_reduce 17 (float32 [10])``."""
    for entry in reversed(_ask(True).get("entries", [])):
        is_it = entry.get("collective_seq_id") == number
        if is_it and _group_of(entry) == group:
            kinds = ", ".join(map(str, entry.get("input_dtypes", [])))
            sizes = ", ".join(map(str, entry.get("input_sizes", [])))
            return f"{entry.get('profiling_name')} {number} ({kinds} {sizes})"
    return f"collective {number}"


def _group_of(entry: dict[str, Any]) -> str:
    return str((entry.get("process_group") or [""])[0])


def _ask(with_entries: bool) -> dict[str, Any]:
    from torch._C import _distributed_c10d

    dump = getattr(_distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return {}
    found: dict[str, Any] = json.loads(dump(with_entries, False))
    return found
