"""The way of one unit to machine code, and what became of each.

A fat binary of the package's goes first, then the cache, then NVRTC. All of it happens
in a thread that lives only while units are wanted; see :mod:`pai_torchacc.cuda_kernels`
for who starts it.
"""

from __future__ import annotations

import os
import sys
import time
from _thread import LockType, allocate_lock, get_native_id
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pai_torchacc.cuda_kernels import cache, nvrtc, shipped
from pai_torchacc.cuda_kernels.shipped import Source
from pai_torchacc.cuda_kernels.target import NoTarget, Target, of_machine

NOTHING_COMPILES = "neither nvcc at build time nor NVRTC"


@dataclass(frozen=True)
class Outcome:
    """Where a unit's code is from, or why there is none; why nothing was cached."""

    origin: str | None = None
    trouble: str | None = None
    uncached: str | None = None


@dataclass
class _State:
    is_on: bool = False
    is_asked: bool = False
    """Somebody wanted something since the last look."""
    working: dict[int, LockType] = field(default_factory=dict)
    """By process: held by the thread that provides. A child has other threads."""
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    nvrtc: nvrtc.Nvrtc | None = None


state = _State()


_NICENESS = 10
"""Of the thread: the program's own go first."""


def run(c: Any) -> None:
    """Provide for all units that are wanted, unless another thread does so already.

    In a thread of its own, which it leaves with a lower priority.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, get_native_id(), _NICENESS)
    state.is_asked = True
    while state.is_asked and state.is_on:
        working = _working()
        if not working.acquire(blocking=False):
            return  # the one who works looks once more before it ends
        try:
            state.is_asked = False
            _provide_all(c)
        finally:
            working.release()


def _working() -> LockType:
    return state.working.setdefault(os.getpid(), allocate_lock())


def wait(timeout_s: float) -> bool:
    """Until no thread of ours works; whether that came in time."""
    working = _working()
    if not working.acquire(timeout=timeout_s):
        return False
    working.release()
    return True


def _provide_all(c: Any) -> None:
    while state.is_on:
        wanted = [name for name, what in c.cuda_units().items() if what == "wanted"]
        if not wanted:
            return
        try:
            target = of_machine(c)
        except NoTarget as error:
            for name in wanted:
                _give_up(c, name, str(error))
            return
        _provide(c, wanted[0], target)


def _provide(c: Any, name: str, target: Target) -> None:
    try:
        state.outcomes[name] = _given(c, name, target)
    except (nvrtc.CompileError, nvrtc.NoNvrtc) as error:
        _give_up(c, name, str(error))
    except Exception as error:  # a unit that stays wanted would be tried for ever
        _give_up(c, name, f"{type(error).__name__}: {error}")


def _give_up(c: Any, name: str, trouble: str) -> None:
    state.outcomes[name] = Outcome(trouble=trouble)
    c.cuda_give_up(name)


def _given(c: Any, name: str, target: Target) -> Outcome:
    package = shipped.contents()
    if package is None:
        raise nvrtc.NoNvrtc("the package was built without its kernels")
    code = package.fat_binary(name, target)
    if isinstance(code, bytes):
        if (trouble := c.cuda_give(name, code)) is None:
            return Outcome("fat binary")
    elif package.has_fat_binaries():
        trouble = code
    else:
        trouble = None
    try:
        compiler = _nvrtc(target)
    except nvrtc.NoNvrtc as error:
        why = trouble or NOTHING_COMPILES
        raise nvrtc.NoNvrtc(f"{why} ({error})") from None
    return _compiled(c, name, package.source(name), compiler, target)


def _nvrtc(target: Target) -> nvrtc.Nvrtc:
    if state.nvrtc is None:
        state.nvrtc = nvrtc.find(sys.modules["torch"])
    if trouble := target.why_too_old(state.nvrtc.version[0]):
        raise nvrtc.NoNvrtc(trouble)
    return state.nvrtc


def _compiled(
    c: Any, name: str, source: Source, compiler: nvrtc.Nvrtc, target: Target
) -> Outcome:
    options, is_cubin = compiler.options(target)
    parts = (source.name, source.text, source.headers, options, compiler.version)
    file = f"{name}-{cache.key(*parts)}.code"
    uncached = None
    try:
        kept = cache.read(file)
        if kept is not None and c.cuda_give(name, kept) is None:
            return Outcome("cache")
    except cache.Unusable as error:
        uncached = str(error)
    start_ns = time.monotonic_ns()
    code = compiler.compile(source, options, is_cubin)
    took_ms = (time.monotonic_ns() - start_ns) / 1e6
    if trouble := c.cuda_give(name, code):
        raise nvrtc.CompileError(f"the driver does not load it: {trouble}")
    if uncached is None:
        try:
            cache.write(file, code)
        except cache.Unusable as error:
            uncached = str(error)
    return Outcome(f"compiled in {took_ms:.0f} ms", uncached=uncached)
