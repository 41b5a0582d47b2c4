"""Who else runs this script: what a launcher such as torchrun has said."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that run the script together."""

    rank: int
    size: int
    local_rank: int


def found() -> Launch | None:
    """By ``WORLD_SIZE``, or by the process group that the script has made.

    None where this is the only process.

    Raises
    ------
    ValueError
        ``WORLD_SIZE``, ``RANK`` or ``LOCAL_RANK`` is no number, or the rank none of the
        world's.
    """
    size, rank = _number("WORLD_SIZE", 1), _number("RANK", 0)
    local_rank = _number("LOCAL_RANK", rank)
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        size, rank = distributed.get_world_size(), distributed.get_rank()
    elif size > 1 and "RANK" not in os.environ:
        raise ValueError(f"WORLD_SIZE={size}, and RANK is not set; torchrun sets both")
    if size < 1 or rank >= size:
        raise ValueError(f"RANK={rank} and WORLD_SIZE={size}; ranks are below the size")
    return Launch(rank, size, local_rank) if size > 1 else None


def _number(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(f"{variable}={text!r}; it is an integer from 0 on")
    return int(text)
