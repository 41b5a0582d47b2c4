"""From the arguments of ``find_batch_size`` to its result, in one process."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from pai_torchacc import _frames
from pai_torchacc.batch_size import limits, process
from pai_torchacc.batch_size.candidates import Candidates
from pai_torchacc.batch_size.ranks import Place
from pai_torchacc.batch_size.result import BatchSize
from pai_torchacc.batch_size.search import Search
from pai_torchacc.batch_size.trial import Task
from pai_torchacc.batch_size.watch import Outcome

_PATIENCE = 60
"""Disturbed trials are repeated for so many times ``seconds``."""


@dataclass(frozen=True)
class Arguments:
    """Those of ``find_batch_size``."""

    step: Callable[[Any], object]
    make_batch: Callable[[int], Any]
    budget: float
    keep_effective: int | None
    smallest: int
    largest: int
    seconds: float
    timeout: float

    def check(self) -> None:
        """Raise TypeError or ValueError where one is wrong."""
        for name in ("step", "make_batch"):
            if not callable(value := getattr(self, name)):
                raise TypeError(f"{name} is a function, not {type(value).__name__}")
        for name, most in (("budget", 1.0), ("seconds", None), ("timeout", None)):
            _check_number(name, getattr(self, name), most)
        for name in ("smallest", "largest", "keep_effective"):
            value = getattr(self, name)
            if name != "keep_effective" or value is not None:
                _check_count(name, value)


def _check_number(name: str, value: Any, most: float | None) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is a number, not {type(value).__name__}: {value!r}")
    if not 0 < value < math.inf or (most is not None and value > most):
        bound = "" if most is None else f" and at most {most:g}"
        raise ValueError(f"{name}={value}; it is above 0{bound}, and finite")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is an integer, not {type(value).__name__}: {value!r}")
    if value < 1:
        raise ValueError(f"{name}={value}; it is 1 or more")


def find(arguments: Arguments, place: Place) -> BatchSize:
    """Search, in a process at this place among those that train together."""
    arguments.check()
    candidates = _candidates(arguments, place.world_size)
    _check_can_fork()
    # Else a trial would: finalizers would run in it too, as those that remove files,
    # and it would seem to need less.
    gc.collect()
    held, everything = limits.held(), limits.available()
    available = everything // place.n_on_machine
    most = int(arguments.budget * (held + available))
    # A trial may copy all that the process holds, and mostly copies little of it: where
    # there is no room for all, the system is watched.
    least_available = everything // 20 if most > available else 0

    def run(n: int) -> Outcome:
        task = Task(
            arguments.step,
            arguments.make_batch,
            n,
            arguments.seconds,
            arguments.budget,
            most,
            least_available,
        )
        return process.run(task, arguments.timeout)

    patience_s = _PATIENCE * arguments.seconds
    search = Search(run, candidates, arguments.timeout, patience_s)
    chosen = search.choose()
    leaking = [t for t in search.trials if t.leak_bytes]
    if leaking:
        _frames.warn_once(
            "find_batch_size: memory grows with every step; its result says by how much"
        )
    per_process = int(arguments.keep_effective or 0) // place.world_size
    return BatchSize(
        batch=chosen.batch,
        accumulation=per_process // chosen.batch or 1,
        world_size=place.world_size,
        throughput=chosen.throughput,
        limit_bytes=search.limit,
        memory=search.memory(),
        trials=tuple(search.trials),
        remarks=tuple(search.remarks),
    )


def _candidates(arguments: Arguments, world_size: int) -> Candidates:
    keep = arguments.keep_effective
    if keep is not None:
        keep, rest = divmod(int(keep), world_size)
        if rest:
            raise ValueError(
                f"keep_effective={arguments.keep_effective} is not a multiple of the "
                f"{world_size} processes"
            )
    return Candidates(int(arguments.smallest), int(arguments.largest), keep)


def _check_can_fork() -> None:
    if sys.platform != "linux":
        raise RuntimeError(
            f"find_batch_size needs Linux: it forks and reads /proc; this is "
            f"{sys.platform}"
        )
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raise RuntimeError(
            "CUDA is initialised in this process, and a forked child cannot use it "
            "then: call find_batch_size before anything touches CUDA, with a step that "
            "makes model and optimizer when it is first called"
        )
