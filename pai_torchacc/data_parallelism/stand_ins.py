"""Where scripts meet us: DataParallel's constructor and call, samplers of ranks."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import nn
from torch.utils.data.distributed import DistributedSampler

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.data_parallelism import noted


def install(ledger: Ledger, is_dividing: bool) -> str | None:
    """See what is wrapped; divide its batches if asked. Who is in the way of that."""
    ledger.set_attribute(nn.DataParallel, "__init__", _constructor(is_dividing))
    if not is_dividing:
        return None
    ledger.set_attribute(DistributedSampler, "__iter__", _drawing())
    ledger.set_attribute(nn.DataParallel, "forward", _forward())
    if ledger.has_set(nn.DataParallel, "forward"):
        return None
    return "torch.nn.DataParallel.forward was changed by others"


def _constructor(is_dividing: bool) -> Any:
    original = nn.DataParallel.__init__
    signature = inspect.signature(original)
    if is_dividing:
        from pai_torchacc.data_parallelism import ranks  # which needs torch.distributed

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        try:
            original(self, *args, **kwargs)
            noted.wrapper(self)
            if is_dividing:
                given = signature.bind(self, *args, **kwargs).arguments
                ranks.member(self, given.get("dim", 0))
        except BaseException as error:
            hide(error)
            raise

    return __init__


def _forward() -> Any:
    from pai_torchacc.data_parallelism import ranks

    original = nn.DataParallel.forward
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def forward(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        try:
            if ranks.is_inside():
                return self.module(*inputs, **kwargs)
            member = None if is_compiling() else ranks.member(self)
            if member is None:
                return original(self, *inputs, **kwargs)
            with ranks.inside():
                return member.forward(self.module, inputs, kwargs)
        except BaseException as error:
            hide(error)
            raise

    return forward


def _drawing() -> Any:
    original = DistributedSampler.__iter__

    @functools.wraps(original)
    def __iter__(self: Any) -> Any:  # noqa: N807
        noted.drawing(self)
        return original(self)

    return __iter__
