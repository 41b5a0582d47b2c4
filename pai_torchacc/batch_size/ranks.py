"""One answer for all processes that train together.

Every process searches by itself, at the same time. They talk twice, by all_gather of
CPU tensors: before, so that those of one machine share its memory, and after, so that
all take the smallest batch, or all raise where one has failed.
"""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pai_torchacc.batch_size.result import BatchSize

_TEXT = 504
"""Bytes of an error's text that other processes get to see."""


@dataclass(frozen=True)
class Place:
    """Where this process is among those that train together."""

    rank: int = 0
    world_size: int = 1
    n_on_machine: int = 1


def agreed(
    search: Callable[[Place], BatchSize], keep_effective: int | None
) -> BatchSize:
    """The search's result; of several processes the smallest batch.

    Raises
    ------
    RuntimeError
        In other processes than those whose search has failed: the text has the rank
        and the error. In these their own error is raised.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return search(Place())
    if not distributed.is_initialized() or distributed.get_world_size() == 1:
        return search(Place())
    place = _place(distributed)
    try:
        found: BatchSize | None = search(place)
        said = b""
    except (Exception, SystemExit) as error:
        found, own = None, error
        said = f"{type(error).__name__}: {error}".encode()[:_TEXT]
    batch = found.batch if found else 0
    every = _gather(distributed, batch.to_bytes(8, "little") + said)
    if found is None:
        raise own
    for rank, answer in enumerate(every):
        if not any(answer[:8]):
            text = answer[8:].rstrip(b"\0").decode(errors="ignore")
            raise RuntimeError(f"find_batch_size failed in rank {rank}: {text}")
    batch = min(int.from_bytes(answer[:8], "little") for answer in every)
    n_samples = (keep_effective or 0) // place.world_size
    return _reduced(found, batch, n_samples // batch or 1)


def _place(distributed: Any) -> Place:
    machine = hashlib.blake2b(platform.node().encode(), digest_size=8).digest()
    every = _gather(distributed, machine)
    rank = distributed.get_rank()
    return Place(rank, len(every), every.count(every[rank]))


def _gather(distributed: Any, content: bytes) -> list[bytes]:
    """What every process says, by rank."""
    import torch

    own = torch.zeros(8 + _TEXT, dtype=torch.uint8, device="cpu")
    own[: len(content)] = torch.tensor(list(content), dtype=torch.uint8, device="cpu")
    every = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, own)
    return [bytes(answer.tolist()) for answer in every]


def _reduced(found: BatchSize, batch: int, accumulation: int) -> BatchSize:
    """The result with a batch that is as small as that of another process."""
    if batch == found.batch:
        return found
    tried = [t for t in found.trials if t.batch <= batch and not t.trouble]
    return replace(
        found,
        batch=batch,
        accumulation=accumulation,
        throughput=tried[-1].throughput if tried else found.throughput,
        remarks=(*found.remarks, f"another process has found {batch}"),
    )
