"""The program that runs one workload under one variant: JSON in, one JSON line out.

``python -m benchmarks.memory.child '{"job": "steps", "variant": "stock",
"workload": "W3", "n_threads": 1, "steps": 20}'``. Jobs: ``steps`` times them and counts
page faults, ``live`` finds the peak of tensor bytes, ``micro`` times the allocator
alone.
"""

from __future__ import annotations

import array
import ctypes
import gc
import json
import re
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import pai_torchacc as ptac
from benchmarks.extension import compiled, symbols
from benchmarks.memory.variants import VARIANTS, Missing
from pai_torchacc.bench.workloads import WORKLOADS, Task

POOLED = 64 << 10
"""Requests below this stay in libc under every variant but preloaded ones."""

ARENA = "ptac.arena_bytes.peak"

FILL_BYTES = 64 << 20
PAIR_BYTES = tuple(1 << i for i in range(16, 29, 2))


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Do one job; what there is to say about it, or why it cannot be done here."""
    torch.set_num_threads(request["n_threads"])
    base = _resident()["RssAnon"]
    try:
        switch_on_ms = VARIANTS[request["variant"]].prepare()
    except Missing as why:
        return {"missing": str(why)}
    if request["job"] == "micro":
        return micro(request["steps"])
    if request["job"] == "live":
        return live(request["workload"], request["steps"])
    said = steps(request["workload"], request["steps"])
    return said | {"base_bytes": base, "switch_on_ms": switch_on_ms}


def steps(workload: str, n_steps: int) -> dict[str, Any]:
    """Time steps and count their page faults; the process's memory; the end's bits."""
    # Made and touched beforehand, so that no step has to grow them.
    zeros = bytes(8 * n_steps)
    ms, faults, arena = (array.array(kind, zeros) for kind in "dqq")
    read_arena = _arena_reader()
    _reset_peak()
    task = WORKLOADS[workload].task()
    for i in range(n_steps):
        before, start = _minor_faults(), time.perf_counter()
        result = task.step()
        ms[i] = (time.perf_counter() - start) * 1e3
        faults[i] = _minor_faults() - before
        arena[i] = read_arena()
    end = _resident()
    said = {
        "ms": [round(t, 4) for t in ms],
        "faults": list(faults),
        "peak_bytes": end["VmHWM"] - end["RssFile"],
        "max_rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "arena_bytes": list(arena) if any(arena) else None,
        "pool": _pool_statistics(),
        "bits": bits(task, result),
    }
    del task, result
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return said | {"idle_bytes": _resident()["RssAnon"]}


def bits(task: Task, result: torch.Tensor) -> str:
    """The last result, and sums of the bits of it and of every parameter."""
    tensors = [result.detach(), *(p.detach() for p in task.model.parameters())]
    sums = [int(t.flatten().view(torch.int32).sum()) for t in tensors]
    return f"{float(result.detach().flatten()[0]).hex()} {sum(sums):x}"


def live(workload: str, n_steps: int) -> dict[str, Any]:
    """Count the tensors' bytes as torch's profiler hears of them: the same everywhere.

    Of interest is the most at one time: of all tensors, and of those of 64 KiB or more,
    which a pool is asked for.
    """
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True) as profiler:
        task = WORKLOADS[workload].task()
        for _ in range(n_steps):
            result = task.step()
        del task, result
    events = profiler.profiler.kineto_results.events()
    changes = [e.nbytes() for e in events if e.name() == "[memory]"]
    return {
        "live_bytes": peak(changes),
        "pooled_bytes": peak(c for c in changes if abs(c) >= POOLED),
        "allocations_per_step": sum(c > 0 for c in changes) / n_steps,
    }


def peak(changes: Iterable[int]) -> int:
    """Most bytes at one time, of allocations (positive) and frees in their order."""
    now = most = 0
    for change in changes:
        now += change
        most = max(most, now)
    return most


def micro(repeats: int) -> dict[str, Any]:
    """Time 64 MiB allocated, filled and freed, on two threads; and pairs untouched."""
    return {
        "fill": {
            "main": fill(repeats),
            "second": _in_thread(lambda: fill(repeats)),
        },
        "empty_ns": {str(n): empty_pair_ns(n) for n in (16, *PAIR_BYTES)},
        "pair_ns": pool_pairs_ns(),
    }


def fill(repeats: int) -> dict[str, float]:
    """Median ms, and page faults each time, of a 64 MiB tensor's short life."""

    def once() -> None:
        torch.empty(FILL_BYTES // 4).fill_(1.0)

    for _ in range(3):
        once()
    times, before = [], _minor_faults()
    for _ in range(repeats):
        start = time.perf_counter()
        once()
        times.append(time.perf_counter() - start)
    faults = (_minor_faults() - before) / repeats
    return {"ms": sorted(times)[repeats // 2] * 1e3, "faults": faults}


def empty_pair_ns(n_bytes: int, pairs: int = 2000, blocks: int = 7) -> float:
    """Best time of ``torch.empty`` and its end, Python's share included."""
    make, dtype, best = torch.empty, torch.uint8, float("inf")
    for _ in range(blocks):
        start = time.perf_counter_ns()
        for _ in range(pairs):
            make(n_bytes, dtype=dtype)
        best = min(best, (time.perf_counter_ns() - start) / pairs)
    return best


def pool_pairs_ns(pairs: int = 100_000) -> dict[str, float] | None:
    """Time an allocation and its free in a loop in C, where the pool is on."""
    if not _pool_statistics():
        return None
    pair = compiled("benchmarks/memory/pairs.c").pair_ns
    pair.restype = ctypes.c_double
    take, give = symbols()["ptac_cpu_pool_alloc"], symbols()["ptac_cpu_pool_free"]

    def pair_ns(n_bytes: int) -> float:
        n, bytes_ = ctypes.c_long(pairs), ctypes.c_size_t(n_bytes)
        found = pair(ctypes.c_void_p(take), ctypes.c_void_p(give), bytes_, n)
        if found < 0:
            raise MemoryError
        return found

    return {str(n): min(pair_ns(n) for _ in range(5)) for n in PAIR_BYTES}


def _in_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def _pool_statistics() -> dict[str, Any] | None:
    """The pool's own, where it is on."""
    is_on = "memory_pool" in ptac.status() and ptac.is_enabled("memory_pool")
    return ptac.memory_stats("cpu") if is_on else None


def _arena_reader() -> Callable[[], int]:
    return (
        (lambda: ptac.memory_stats("cpu").get(ARENA, 0)) if _pool_statistics() else int
    )


def _minor_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _resident() -> dict[str, int]:
    """Bytes of this process's memory by kind, and the most there ever was."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return {k: int(n) << 10 for k, n in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


def _reset_peak() -> None:
    """Let VmHWM start from what is resident now: imports are not the workload."""
    with suppress(OSError):  # not in every container; the imports need less than it
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
