"""The wrapped models of this process, and what becomes of their calls."""

from __future__ import annotations

import weakref
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc._frames import warn_once
from pai_torchacc.data_parallelism import group as groups
from pai_torchacc.data_parallelism import launch, noted
from pai_torchacc.data_parallelism.batches import Call
from pai_torchacc.data_parallelism.checking import Verdict, check, is_watched
from pai_torchacc.data_parallelism.dividing import (
    DifferentBatches,
    Told,
    Undividable,
    by_script,
    compare,
    device_of,
    divided,
)
from pai_torchacc.data_parallelism.group import Group

LEAST_ROWS = 2
"""Of each rank. Models may squeeze a batch of one row, and few rows gain nothing."""

_FEW_ROWS = f"fewer than {LEAST_ROWS} rows a process"

_OWN_WAYS = ("scatter", "replicate", "parallel_apply", "gather")

_DIFFERENT = (
    "the processes were given different batches; every process has to draw the same: "
    "leave random numbers alike, and ranks out of the script, or use a "
    "DistributedSampler"
)


class Member:
    """One DataParallel: what was found out about it, and where its calls went."""

    def __init__(self, wrapper: nn.DataParallel[Any], dim: int, group: Group):
        self.name = type(wrapper.module).__name__
        self.is_by_script = False
        """Whether the script has given each rank a batch of its own."""
        self.verdicts: dict[_Manner, Verdict] = {}
        self.n_divided = 0
        self.n_whole: Counter[str] = Counter()
        self.group, self._dim = group, dim
        self.refusal = self._obstacle(wrapper)
        if self.refusal is None:
            group.draw_alike()
            group.copy_from_first(_state(wrapper))
        else:
            self._warn(self.refusal)

    def _obstacle(self, wrapper: nn.DataParallel[Any]) -> str | None:
        """Why it stays stock; the same on all ranks."""
        state = _state(wrapper)
        kinds = [(t.shape, t.dtype, t.layout, t.device.type) for t in state]
        rows = self.group.exchange([zlib.crc32(repr(kinds).encode())])
        if any(row != rows[0] for row in rows):
            return "its parameters have other shapes in another process"
        for name in _OWN_WAYS:
            if getattr(type(wrapper), name) is not getattr(nn.DataParallel, name):
                return f"its class has a {name}() of its own"
        if any(t.is_meta or t.layout is not torch.strided for t in state):
            return "a parameter is on the meta device, or sparse"
        return None

    @property
    def is_divided(self) -> bool:
        """Whether batches are or will be divided, as far as is known."""
        if self.is_by_script or not (self.refusal or self.verdicts):
            return True
        return any(v.is_divided for v in self.verdicts.values()) and not self.refusal

    def forward(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What the wrapper gives: by rows, where that is known to be the same."""
        call = Call(args, kwargs, self._dim)
        manner = _manner(module)
        is_new = manner not in self.verdicts
        why_whole = self.refusal
        if not (why_whole or self.is_by_script):
            try:
                why_whole = self._why_whole(module, call, manner)
                if why_whole is None:
                    result = divided(module, call, self.group, self._told(manner))
                    self.n_divided += 1
                    return result
            except Undividable as error:
                why_whole = str(error)
            except DifferentBatches as error:
                if self.verdicts and not error.is_by_script:
                    raise
                self.is_by_script = error.is_by_script
                if not error.is_by_script:
                    why_whole = self.refusal = _DIFFERENT
        if self.is_by_script:
            return by_script(module, call, self.group)
        assert why_whole is not None
        self.n_whole[why_whole] += 1
        call = call.on(device_of(module))
        args, kwargs = call.with_tensors(call.tensors)
        try:
            result = module(*args, **kwargs)
        except Exception:
            if is_new:  # the mistake may be the caller's, and gone the next time
                self.verdicts.pop(manner, None)
            raise
        if why_whole != _FEW_ROWS:
            self._warn(why_whole)
        return result

    def _why_whole(self, module: nn.Module, call: Call, manner: _Manner) -> str | None:
        """The reason where every rank has to compute the whole batch."""
        verdict = self.verdicts.get(manner)
        obstacle = call.obstacle
        if obstacle is None and call.n_rows < LEAST_ROWS * self.group.size:
            obstacle = _FEW_ROWS
        if verdict and verdict.is_divided and not obstacle:
            return None  # dividing compares the batches, too
        compare(call, self.group, self._told(manner))
        if obstacle:
            return obstacle
        if verdict is None:
            verdict = self.verdicts[manner] = check(module, call, self.group)
        return None if verdict.is_divided else verdict.reason

    def _told(self, manner: _Manner) -> Told:
        verdict = self.verdicts.get(manner)
        is_divided = verdict is not None and verdict.is_divided
        return Told(
            manner=manner[0] | manner[1] << 1 | is_divided << 2,
            has_drawn=noted.sampling.is_used,
            waits=not self.verdicts,
        )

    def _warn(self, reason: str) -> None:
        if self.group.rank == 0:
            text = f"pai_torchacc: {self.name} is not divided over processes, which all"
            warn_once(f"{text} compute whole batches: {reason}")


_Manner = tuple[bool, bool, int]
"""Training mode, whether gradients are recorded, and a number for all layers.

A layer may be thawed or watched by a hook, or another one put in its place: that is
judged anew.
"""


def _manner(module: nn.Module) -> _Manner:
    kinds = [(type(m), m.training, is_watched(m)) for m in module.modules()]
    return module.training, torch.is_grad_enabled(), hash(tuple(kinds))


def _state(wrapper: nn.Module) -> list[Tensor]:
    return list(chain(wrapper.parameters(), wrapper.buffers()))


_members: weakref.WeakKeyDictionary[nn.DataParallel[Any], Member] = (
    weakref.WeakKeyDictionary()
)

_all: list[Member] = []
"""Also of wrappers that are gone: what became of them is still of interest."""

_failure: list[str] = []
"""Why there is no process group."""


def member(wrapper: nn.DataParallel[Any], dim: int = 0) -> Member | None:
    """What is known about a wrapper, which joins the others at its first call.

    None where this process trains by itself.
    """
    if _failure:
        return None
    known = _members.get(wrapper)
    if known is not None and known.group.is_there:
        return known
    try:
        launched = launch.found()
        if launched is None:
            return None
        group = groups.of(launched)
    except (ValueError, RuntimeError) as error:
        _failure.append(f"the processes did not meet: {error}")
        warn_once(f"pai_torchacc: {_failure[0]}; this one trains by itself")
        return None
    dim = getattr(wrapper, "dim", dim)  # which torch keeps only where there are GPUs
    known = _members[wrapper] = Member(wrapper, dim, group)
    _all.append(known)
    return known


_calls: list[None] = []
"""Calls of members that have begun and not ended."""


@contextmanager
def inside() -> Iterator[None]:
    """While a member computes: wrappers inside its module have nothing to divide."""
    _calls.append(None)
    try:
        yield
    finally:
        _calls.pop()


def is_inside() -> bool:
    """Whether a member computes."""
    return bool(_calls)


def forget() -> None:
    """What was found out about wrappers. The process group stays."""
    _members.clear()
    _all.clear()
    _failure.clear()


def failure() -> str | None:
    """Why there is no process group, where one was asked for."""
    return _failure[0] if _failure else None


def members() -> list[Member]:
    """All of them, also of wrappers that are gone."""
    return list(_all)
