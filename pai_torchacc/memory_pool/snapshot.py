"""The pool's blocks and last events in the schema of torch's memory snapshots.

The dictionary is what ``torch.cuda.memory._snapshot()`` returns; pickled, it opens in
PyTorch's memory_viz, and ``torch.cuda._memory_viz`` reads it. Call stacks are not kept:
``frames`` are empty.

Source: torch/cuda/memory.py, ``_snapshot``.
"""

from __future__ import annotations

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
    kind = device_checked(device)
    if kind == "cuda" and cuda.has_pool():
        content = _cuda_snapshot(cuda.index_of(device))
    elif kind == "cuda":
        torch_cuda = cuda.initialized()
        content = torch_cuda.memory._snapshot() if torch_cuda else _document([], [])
    else:
        content = _cpu_snapshot()
    if path is not None:
        with Path(path).open("wb") as file:
            pickle.dump(content, file)
    return content


def _cpu_snapshot() -> dict[str, Any]:
    try:
        c = _host.extension()
    except _host.Unavailable:
        return _document([], [])
    base, held, blocks = c.pool_blocks()
    events = _event_rows(_torch_events(c.pool_history()))
    return _document(_segments(base, held, blocks), events)


def _cuda_snapshot(number: int) -> dict[str, Any]:
    """One device's pool; a segment is an arena, of which there are two a stream."""
    c = _host.extension()
    arenas: dict[tuple[int, int, bool, int], list[tuple[int, int, int, bool]]] = {}
    for base, held, *block, is_small, stream in c.cuda_pool_blocks(number):
        arenas.setdefault((base, held, is_small, stream), []).append(tuple(block))
    segments = []
    for (base, held, is_small, stream), blocks in arenas.items():
        for segment in _segments(base, held, blocks):
            segment["device"] = number
            segment["stream"] = stream
            segment["segment_type"] = "small" if is_small else "large"
            segments.append(segment)
    return _document(segments, _event_rows(c.cuda_pool_history(number)))


def _event_rows(events: Any) -> list[dict[str, Any]]:
    return [
        {
            "action": action,
            "addr": address,
            "size": size,
            "stream": stream,
            "time_us": t_ns // 1000,
            "frames": [],
        }
        for action, address, size, stream, t_ns in events
    ]


def _torch_events(history: list[tuple[Any, ...]]) -> Any:
    """Torch tells of a free twice: when it was asked for, and when it was done."""
    for event in history:
        if event[0] == "free_completed":
            yield ("free_requested", *event[1:])
        yield event


def _segments(
    base: int, held: int, blocks: list[tuple[int, int, int, bool]]
) -> list[dict[str, Any]]:
    if not held:
        return []
    end = blocks[-1][0] + blocks[-1][1] if blocks else base
    total = max(held, end - base)
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
    if end < base + total:
        rows.append(
            {
                "address": end,
                "size": base + total - end,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            }
        )
    used = [row for row in rows if row["state"] != "inactive"]
    allocated = sum(row["size"] for row in used)
    return [
        {
            "device": 0,
            "address": base,
            "total_size": total,
            "allocated_size": allocated,
            "active_size": allocated,
            "requested_size": sum(row["requested_size"] for row in used),
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": True,
            "frames": [],
            "blocks": rows,
        }
    ]


def _document(
    segments: list[dict[str, Any]], events: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "segments": segments,
        "device_traces": [events],
        "allocator_settings": {},
        "external_annotations": [],
    }
