"""What the bits of elementwise operators depend on besides their arguments."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, TypeVar

import torch

from pai_torchacc._lock import float_mode as _lock

FloatMode = tuple[int, int, bool]
"""How many threads share the elements, whose vectors end elsewhere then; how the CPU
rounds and treats subnormal numbers; and whether oneDNN may be asked. The first two are
the thread's own, the last is the whole process's.
"""

_T = TypeVar("_T")

_first: bool | None = None
_is_mixed = False
"""Whether oneDNN has been switched between what was saved and what was saved later."""


def here(c: Any) -> FloatMode:
    """Tell this thread's."""
    return torch.get_num_threads(), c.float_mode(), torch._C._get_mkldnn_enabled()


def noted(c: Any) -> FloatMode:
    """Tell this thread's, in which something may be computed again."""
    global _first, _is_mixed  # noqa: PLW0603
    found = here(c)
    if found[2] is not _first:
        _is_mixed = _first is not None
        _first = found[2] if _first is None else _first
    return found


def alone(work: Callable[[], _T]) -> _T:
    """What ``work`` gives while nobody else of us has another setting for a while."""
    with _lock if _is_mixed else nullcontext():
        return work()


def within(c: Any, wanted: FloatMode, work: Callable[[], _T]) -> _T:
    """What ``work`` gives in that setting.

    Where oneDNN's switch is not the same for all, one works at a time: nobody changes
    it under another's feet, nor takes another's for the program's.
    """
    now = here(c)
    if not _is_mixed and now[2] is wanted[2]:
        return work() if now == wanted else _changed(c, now, wanted, work)
    with _lock:
        return _changed(c, here(c), wanted, work)


def _changed(c: Any, now: FloatMode, wanted: FloatMode, work: Callable[[], _T]) -> _T:
    try:
        _change(c, now, wanted)
        return work()
    finally:
        _change(c, wanted, now)


def _change(c: Any, old: FloatMode, new: FloatMode) -> None:
    """The process's first, of which others would notice an interrupt."""
    if old[2] is not new[2]:
        torch._C._set_mkldnn_enabled(new[2])
    if old[1] != new[1]:
        c.set_float_mode(new[1])
    if old[0] != new[0] and not c.set_own_threads(new[0]):
        torch.set_num_threads(new[0])
