"""What the child process of one trial does: steps of one batch size, measured.

Memory comes first, while all storages are the memory pool's, which counts them; then
time, with the program's own allocator. What it sees it says in messages, dictionaries
that JSON can hold: ``base``, ``seen`` and ``need``, then ``steps`` for each stretch of
them and ``time``, and ``end`` or ``error``.
Everything changed here ends with the process, so nothing is undone.
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pai_torchacc.batch_size import cpus, errors, limits, meter, shapes
from pai_torchacc.batch_size.meter import Leak
from pai_torchacc.memory_pool.statistics import (
    memory_stats,
    reset_peak_memory_stats,
)

_WARM_UP = 2
"""Steps that do not count: the first one makes gradients and optimizer state."""

_LEAST_TIMED, _MOST_TIMED = 3, 2000

_POOL_STEPS = 3
"""Steps that show whether memory grows."""

N_STEPS = 2 * _WARM_UP + _LEAST_TIMED + _POOL_STEPS
"""Steps of a trial at least."""

_STRETCH_S = 0.02
"""Steps are timed and reported in stretches: a program that listens takes time too."""

_PATIENCE = 3
"""How many times as long as asked for a trial waits for the CPUs to be quiet."""

Send = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Task:
    """What a trial runs, and what it may take."""

    step: Callable[[Any], Any]
    make_batch: Callable[[int], Any]
    n: int
    seconds: float
    """Of timed steps, at least three of them."""
    budget: float
    most_bytes: int
    """What the whole process may hold."""
    least_available: int = 0
    """What the system has to keep, where a trial is watched for it."""


def run(task: Task, send: Send) -> None:
    """Run the trial; what it raises is sent."""
    try:
        _leave_process_groups()
        _Trial(task, send).run()
        send({"kind": "end"})
    except BaseException as error:
        send({"kind": "error", **errors.described(error)})


class _Trial:
    def __init__(self, task: Task, send: Send):
        self._task, self._send = task, send
        self._base = 0
        self._left = list[int]()  # after each step
        self._batch: Any = None
        self._cuda: Any = None

    def run(self) -> None:
        task = self._task
        gc.freeze()  # what the program leaves behind is its own to collect
        self._base = meter.settle()
        most = max(0, task.most_bytes - self._base)
        meter.cap(most)
        self._send({"kind": "base", "base": self._base, "limit": most})
        with meter.pool() as has_pool:
            counted = self._pool_steps() if has_pool else None
        if counted:
            self._say_need(*counted)
        meter.settle()
        self._stretch(0, _WARM_UP)
        self._timed_steps()
        if not counted:
            need = self._memory()["peak"]
            least = Leak.COUNTED if self._cuda else Leak.SEEN
            self._say_need(need, meter.leak(self._left, need, least))

    def _say_need(self, need: int, grown: int) -> None:
        self._send({"kind": "need", "need": need, "leak": grown})

    def _timed_steps(self) -> None:
        """Steps until enough of them ran undisturbed, or patience ends."""
        enough_s = self._task.seconds
        quiet, every = list[float](), list[float]()
        while not (
            _is_enough(quiet, enough_s) or _is_enough(every, _PATIENCE * enough_s)
        ):
            before_s, start = cpus.waited_s(), time.perf_counter()
            seconds = self._stretch(_STRETCH_S, 1)
            elapsed_s = time.perf_counter() - start
            every += seconds
            if cpus.are_quiet(cpus.waited_s() - before_s, elapsed_s):
                quiet += seconds
        is_quiet = len(quiet) >= _LEAST_TIMED
        timed = sorted(quiet if is_quiet else every)
        faster = timed[: (len(timed) + 1) // 2]
        self._send(
            {
                "kind": "time",
                "seconds": statistics.median(faster),
                "n_steps": len(timed),
                "is_quiet": is_quiet,
            }
        )

    def _stretch(self, seconds: float, least: int) -> list[float]:
        """Steps for so long, and so many at least; how long each took."""
        timed, message = list[float](), dict[str, Any]()
        peak, ends_at = 0, time.perf_counter() + seconds
        while len(timed) < least or time.perf_counter() < ends_at:
            timed.append(self._one_step())
            message = self._memory()
            peak = max(peak, message["peak"])
            self._left.append(message["left"])
        said = {"kind": "steps", "shapes": shapes.of(self._batch)}
        self._send(said | message | {"peak": peak})
        return timed

    def _one_step(self) -> float:
        self._batch = self._task.make_batch(self._task.n)  # while the last one is there
        start = time.perf_counter()
        self._task.step(self._batch)
        if self._cuda is None:
            self._cuda = meter.cuda_in_use()
        if self._cuda:
            self._cuda.synchronize()
        return time.perf_counter() - start

    def _pool_steps(self) -> tuple[int, int] | None:
        """Bytes in use at most, and by how many they grow in a step; on a GPU, None.

        The pool counts storages in use. What a process holds besides has an allocator's
        slack: glibc keeps some 100 MiB that was freed, for one size more than for a
        larger one, and gives none of it back that lies in an arena of threads.
        """
        before = meter.in_use("current")
        reset_peak_memory_stats()
        storages, everything = [], []
        for _ in range(_WARM_UP + _POOL_STEPS):
            self._one_step()
            if self._cuda:
                return None
            storages.append(memory_stats()["allocated_bytes.all.current"])
            everything.append(meter.in_use("current"))
            self._send({"kind": "seen", "peak": self._memory()["peak"]})
        need = meter.in_use("peak") - before
        grown = meter.leak(storages, need, Leak.COUNTED)
        return need, grown or meter.leak(everything, need, Leak.SEEN)

    def _memory(self) -> dict[str, int]:
        """Bytes at most and after this step, beyond what was there at the beginning."""
        if self._cuda:
            return meter.cuda_memory(self._cuda, self._task.budget)
        now = limits.status()
        peak = now["VmHWM"] - now["RssFile"] - now["RssShmem"]
        return {"peak": peak - self._base, "left": now["RssAnon"] - self._base}


def _is_enough(timed: list[float], seconds: float) -> bool:
    if len(timed) >= _MOST_TIMED:
        return True
    return len(timed) >= _LEAST_TIMED and sum(timed) >= seconds


def _leave_process_groups() -> None:
    """Have DDP modules run by themselves, and collectives fail instead of waiting.

    The threads that would answer them are not in this process.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available():
        return
    if distributed.is_initialized():
        distributed.GroupMember.WORLD = None
    if wrapper := sys.modules.get("torch.nn.parallel.distributed"):
        wrapper.DistributedDataParallel.forward = _forward_of_its_module


def _forward_of_its_module(ddp: Any, *args: Any, **kwargs: Any) -> Any:
    """Without preparing a backward pass, in which gradients then stay as they are."""
    return ddp.module(*args, **kwargs)
