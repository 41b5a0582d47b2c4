"""What the stand-ins have seen of the script, whatever the mode."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

_COPIES = 2
"""What training holds at least: parameters and their gradients."""


@dataclass
class Sampling:
    """How the script uses torch's DistributedSampler."""

    is_used: bool = False
    is_repeating: bool = False
    """Whether one that shuffles has had the same order in two epochs."""


sampling = Sampling()
_epochs: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_wrappers: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def wrapper(made: nn.Module) -> None:
    """A DataParallel was made."""
    _wrappers.add(made)


def drawing(sampler: Any) -> None:
    """A DistributedSampler begins an epoch."""
    sampling.is_used = True
    if sampler.shuffle and _epochs.get(sampler) == sampler.epoch:
        sampling.is_repeating = True
    _epochs[sampler] = sampler.epoch


def forget() -> None:
    """Begin anew."""
    sampling.is_used = sampling.is_repeating = False
    _epochs.clear()
    _wrappers.clear()


def advice() -> tuple[str, ...]:
    """What would help, seen from this."""
    found = [_beyond(w) for w in _wrappers]
    if sampling.is_repeating:
        found.append(
            "a DistributedSampler has the same order in every epoch: "
            "call its set_epoch(epoch) before each"
        )
    return tuple(text for text in found if text)


def _beyond(wrapper: nn.Module) -> str | None:
    needed = _COPIES * sum(p.numel() * p.itemsize for p in wrapper.parameters())
    there = _memory_bytes()
    if there is None or needed <= there:
        return None
    return (
        f"{type(wrapper.module).__name__} needs {needed / 2**30:.0f} GiB or more to "
        f"train, and a device has {there / 2**30:.0f}: data parallelism copies it "
        "whole; torch.distributed.fsdp.fully_shard divides it"
    )


def _memory_bytes() -> int | None:
    if torch.cuda.is_available():
        return int(torch.cuda.get_device_properties(0).total_memory)
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
