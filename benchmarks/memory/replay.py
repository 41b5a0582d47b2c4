"""``bench memory --replay``: recorded training under every placement, without memory.

Each workload trains some steps with the pool on and its history kept. The requests and
frees of 64 KiB and more are then replayed through the engine by every policy, and
placed by the planner, which knows all lifetimes beforehand. What counts is the arena
over the most bytes in use at a time, below which no placement can be.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
from typing import Any

from rich.table import Table

import pai_torchacc as ptac
from benchmarks.extension import compiled
from pai_torchacc import _C
from pai_torchacc.bench.run import console
from pai_torchacc.bench.workloads import WORKLOADS
from pai_torchacc.commands.usage import UsageError

RECORDED = ("W1", "W3", "W4", "W4g", "W4gv", "W5", "UN", "EW")
STEPS = 4
GRANULE, LEAST = 64, 64 << 10
EVENTS = 1 << 20

PLANNED = "planned"
TARGET = 1.02
"""Arena over live bytes of the planner, or what the best policy takes."""

Trace = list[tuple[int, int]]

ENGINE = (
    "tests/csrc/mem/support/replay.c",
    "csrc/mem/engine/*.c",
    "csrc/mem/planning/plan.c",
)


def run(options: argparse.Namespace) -> tuple[Any, int]:
    """Record and replay what the options name; the document and the exit status."""
    names = options.workloads or RECORDED
    if wrong := sorted(set(names).difference(WORKLOADS)):
        raise UsageError(f"no workload is called {', '.join(wrong)}")
    table = Table(title="arena over live bytes")
    columns = [*_C.pool_policies(), PLANNED]
    for column in ("workload", "events", "live MiB", *columns):
        table.add_column(column, justify="left" if column == "workload" else "right")
    rows, missed = [], 0
    for name in names:
        trace = record(name, options.steps or STEPS)
        live, ratios = replay(trace)
        rows.append({"workload": name, "events": len(trace), "live": live} | ratios)
        missed += ratios[PLANNED] > max(TARGET, min(ratios.values()))
        shown = [f"{ratios[column]:.4f}" for column in columns]
        table.add_row(name, str(len(trace)), f"{live / 2**20:.1f}", *shown)
    screen = console()
    screen.print(table)
    if options.check:
        screen.print(f"{missed} workloads planned worse than {TARGET}")
    return {"replay": rows}, 1 if options.check and missed else 0


def record(name: str, steps: int) -> Trace:
    """(bytes, 0) for a request, (0, n) for the free of the n-th, of some steps."""
    with ptac.enable_memory_pool(history=EVENTS):
        task = WORKLOADS[name].task()
        for _ in range(steps):
            task.step()
        history = _C.pool_history(-1)
        del task
        gc.collect()
    return as_trace(history)


def as_trace(history: list[tuple[Any, ...]]) -> Trace:
    """The pool's history without addresses; frees of what is older are left out."""
    trace: Trace = []
    numbers: dict[int, int] = {}
    n_requests = 0
    for kind, address, n_bytes, *_ in history:
        if kind == "alloc":
            numbers[address] = n_requests
            n_requests += 1
            trace.append((n_bytes, 0))
        elif kind == "free_completed" and address in numbers:
            trace.append((0, numbers.pop(address)))
    return trace


def replay(trace: Trace) -> tuple[int, dict[str, float]]:
    """The most bytes in use, and each placement's arena over that."""
    found = {policy: placed(policy, trace) for policy in _C.pool_policies()}
    live, _, planned = next(iter(found.values()))
    ratios = {policy: arena / live for policy, (_, arena, _) in found.items()}
    return live, ratios | {PLANNED: planned / live}


def placed(policy: str, trace: Trace) -> tuple[int, int, int]:
    """The most bytes in use, the arena, and the arena if all were planned before."""
    engine = compiled(*ENGINE)
    steps = (ctypes.c_size_t * 2 * len(trace))(*trace)
    peaks = (ctypes.c_size_t * 3)()
    engine.ptac_policy_find.restype = ctypes.c_void_p
    found = ctypes.c_void_p(engine.ptac_policy_find(policy.encode()))
    sizes = ctypes.c_size_t(GRANULE), ctypes.c_size_t(LEAST)
    engine.ptac_replay.restype = ctypes.c_bool
    if not engine.ptac_replay(found, *sizes, steps, ctypes.c_size_t(len(trace)), peaks):
        raise ValueError("the trace frees what is not in use")
    live, arena, planned = peaks
    return live, arena, planned
