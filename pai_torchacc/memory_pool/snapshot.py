"""The pool's blocks and last events in the schema of torch's memory snapshots.

The dictionary is what ``torch.cuda.memory._snapshot()`` returns; pickled, it opens in
PyTorch's memory_viz, and ``torch.cuda._memory_viz`` reads it. Call stacks are not kept:
``frames`` are empty.

Source: torch/cuda/memory.py, ``_snapshot``.
"""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path
from typing import Any

from pai_torchacc import _host
from pai_torchacc._options import device_checked
from pai_torchacc.memory_pool import cuda


def memory_snapshot(
    device: object = "cpu", path: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """The pool's blocks, and its last events, as ``torch.cuda.memory._snapshot``.

    Parameters
    ----------
    device : {"cpu", "cuda"}
        Whose pool.
    path : path, optional
        Write it there as well, pickled: a file for PyTorch's memory_viz.

    Returns
    -------
    dict
        ``segments``, ``device_traces`` (events, if ``enable_memory_pool(history=n)``
        was asked for), ``allocator_settings``, ``external_annotations``.
    """
    if device_checked(device) == "cpu" or cuda.has_pool():
        content = _snapshot(cuda.index_of(device))
    else:
        torch_cuda = cuda.initialized()
        content = torch_cuda.memory._snapshot() if torch_cuda else _document([], [])
    if path is not None:
        Path(path).write_bytes(pickle.dumps(content))
    return content


def _snapshot(number: int) -> dict[str, Any]:
    """A device's pool, -1 for the CPU's; a segment is an arena, two a CUDA stream."""
    if (c := _host.compiled()) is None:
        return _document([], [])
    segments = [
        _segment(max(number, 0), base, is_small, stream, [row[4:] for row in rows])
        for (base, held, is_small, stream), rows in itertools.groupby(
            c.pool_blocks(number), lambda row: row[:4]
        )
        if held
    ]
    events = c.pool_history(number)
    return _document(segments, _event_rows(events, tells_twice=number >= 0))


def _event_rows(
    events: list[tuple[str, int, int, int, int]], tells_twice: bool
) -> list[dict[str, Any]]:
    """Torch tells of a free twice: when it was asked for, and when it was done."""
    return [
        {
            "action": action,
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": t_ns // 1000,
            "frames": [],
        }
        for event, address, size, stream, t_ns in events
        for action in (
            ("free_requested", event)
            if event == "free_completed" and not tells_twice
            else (event,)
        )
    ]


def _segment(
    number: int, base: int, is_small: bool, stream: int, blocks: list[Any]
) -> dict[str, Any]:
    rows = [
        {
            "address": address,
            "size": size,
            "requested_size": requested,
            "state": "inactive" if is_free else "active_allocated",
            "frames": [],
        }
        for address, size, requested, is_free in blocks
    ]
    allocated = sum(size for _, size, _, is_free in blocks if not is_free)
    return {
        "device": number,
        "address": base,
        "total_size": sum(size for _, size, _, _ in blocks),
        "allocated_size": allocated,
        "active_size": allocated,
        "requested_size": sum(requested for _, _, requested, _ in blocks),
        "stream": stream,
        "segment_type": "small" if is_small else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": True,
        "frames": [],
        "blocks": rows,
    }


def _document(
    segments: list[dict[str, Any]], events: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {},
        "external_annotations": [],
    }
