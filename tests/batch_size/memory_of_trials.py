"""find_batch_size() and memory: limits, lines and what is no line, leaks.

Limits here are budgets of some 100 MiB, so that a trial meets them at once.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import switching
import torch

import pai_torchacc as ptac
from pai_torchacc.batch_size import limits, meter, trial
from pai_torchacc.batch_size.result import BatchSize

MIB = 1 << 20


def budget_for(n_bytes: int) -> float:
    """The budget that leaves a step about so many bytes, of memory that is free.

    What a search and its trials would collect and give back is not there any more.
    """
    gc.collect()
    held = meter.settle()
    return (held + n_bytes) / (held + limits.available())


@pytest.fixture(autouse=True)
def every_step_takes_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that throughput never ends a search."""
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(trial, "time", clock)


@pytest.fixture(autouse=True)
def others_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget is a share of what is available, which changes under other tests."""
    monkeypatch.setattr(limits, "available", lambda: 8 << 30)


def find(step: Callable[[Any], object], mib: int = 120, **options: Any) -> BatchSize:
    budget = budget_for(mib * MIB)
    return ptac.find_batch_size(step, int, budget, seconds=1, timeout=120, **options)


def takes(n_bytes: float) -> None:
    torch.ones(int(n_bytes), dtype=torch.uint8)


def assert_found_the_limit(found: BatchSize, need: Callable[[int], float]) -> None:
    """What is largest among those that fit is near the limit; none is above."""
    fitting = [t for t in found.trials if not t.trouble]
    largest = fitting[-1].batch
    assert need(largest) <= found.limit_bytes <= 1.5 * need(largest), str(found)
    too_large = [t.batch for t in found.trials if t.trouble]
    assert all(need(n) > 0.9 * found.limit_bytes for n in too_large), str(found)
    assert found.batch <= largest


def test_line_leads_to_the_limit() -> None:
    """1 MiB a sample and 20 besides: each size is predicted within a tenth."""

    def need(n: int) -> float:
        return (20 + n) * MIB

    found = find(lambda n: takes(need(n)))
    assert_found_the_limit(found, need)
    assert found.is_linear, str(found)
    assert not any("memory" in remark for remark in found.remarks)  # others are of time
    assert found.memory is not None
    for n in (40, 100, 250, 1000):
        assert found.memory.predict(n) == pytest.approx(need(n), rel=0.1), str(found)
    fitting = [t for t in found.trials if not t.trouble]
    held_back = [t for t in fitting if t.predicted_bytes is not None]
    assert len(held_back) >= 3
    for t in held_back:
        assert t.predicted_bytes == pytest.approx(t.need_bytes, rel=0.1)


class Cycle:
    """What only the garbage collector frees."""

    def __init__(self) -> None:
        self.own, self.content = self, torch.ones(40 * MIB, dtype=torch.uint8)


def test_garbage_of_the_program_is_no_memory_of_a_step(
    only_explicit_collections: None,
) -> None:
    """It goes before the search, and not in some of the trials."""

    def step(n: int) -> None:
        takes((20 + n) * MIB)
        if n == 16:
            gc.collect()

    budget = budget_for(120 * MIB)
    Cycle()
    found = ptac.find_batch_size(step, int, budget, largest=32, seconds=1)
    assert found.is_linear, str(found)
    assert not any("memory" in remark for remark in found.remarks)  # others are of time


def test_memory_that_an_allocator_keeps_is_no_memory_less() -> None:
    """The C library gives nothing back that lies at the end of a thread's own arena."""

    def blocks(n: int) -> list[torch.Tensor]:
        return [torch.ones(100 << 10, dtype=torch.uint8) for _ in range(10 * n)]

    def search() -> None:
        blocks(20)
        found.append(find(lambda n: blocks(20 + n), largest=16))

    found: list[BatchSize] = []
    thread = threading.Thread(target=search)
    thread.start()
    thread.join()
    needs = {t.batch: t.need_bytes / MIB for t in found[0].trials}
    expected = {n: 0.98 * (20 + n) for n in needs}
    assert needs == pytest.approx(expected, abs=2), str(found[0])


def test_program_that_holds_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As data in memory, of which a trial copies nothing."""
    data = torch.ones(300 * MIB, dtype=torch.uint8)
    monkeypatch.setattr(limits, "available", lambda: 200 * MIB)
    found = ptac.find_batch_size(
        lambda n: takes(n * MIB + data[0]), int, largest=16, seconds=1
    )
    assert not any(t.trouble for t in found.trials)


def test_system_that_runs_short_ends_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program holds more than is left, a trial's copies are watched."""
    data = torch.ones(300 * MIB, dtype=torch.uint8)
    answers = itertools.chain([200 * MIB], itertools.repeat(9 * MIB))
    monkeypatch.setattr(limits, "available", lambda: next(answers))
    with pytest.raises(MemoryError, match="the system has nothing left"):
        ptac.find_batch_size(lambda n: data.add_(1), int, largest=16, seconds=1)


def test_divisors_up_to_the_limit() -> None:
    found = find(lambda n: takes(n * MIB), keep_effective=1440)
    assert_found_the_limit(found, lambda n: n * MIB)
    assert found.batch * found.accumulation == 1440


def test_quadratic_memory_is_noticed() -> None:
    """Distances between all samples of a batch: 64 KiB for each pair."""

    def need(n: int) -> float:
        return n * n * MIB / 16

    found = find(lambda n: takes(need(n)))
    assert_found_the_limit(found, need)
    assert not found.is_linear
    assert "memory is not a straight line over the batch size" in str(found)


@pytest.mark.long
def test_memory_that_jumps_is_noticed() -> None:
    """A workspace of 60 MiB from 20 samples on, which no smaller batch shows."""
    found = find(lambda n: takes((n + 60 * (n >= 20)) * MIB))
    assert_found_the_limit(found, lambda n: (n + 60 * (n >= 20)) * MIB)
    assert not found.is_linear


@pytest.mark.parametrize("is_on", [False, True], ids=["stock", "accelerated"])
def test_nothing_fits(is_on: bool) -> None:
    if is_on:
        assert ptac.enable()
    try:
        with pytest.raises(MemoryError, match="a batch of 2 does not fit into"):
            find(lambda n: takes(300 * MIB))
    finally:
        ptac.disable()
    torch.ones(300 * MIB, dtype=torch.uint8)  # the limit was the child's


def python_bytes(n: int) -> None:
    bytearray(b"1") * (n * MIB)


def numpy_array(n: int) -> None:
    import numpy as np

    np.ones(n * MIB, dtype=np.uint8)


def unchecked_malloc(n: int) -> None:
    """As a library might that writes to what it did not get."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = libc.free.argtypes = [ctypes.c_size_t]
    blocks = []
    for _ in range(4):
        blocks.append(libc.malloc(n * MIB // 4))
        ctypes.memset(blocks[-1] or 0, 1, n * MIB // 4)
    for block in blocks:
        libc.free(block)


LONG = [
    pytest.param(s, marks=pytest.mark.long) for s in (numpy_array, unchecked_malloc)
]


@pytest.mark.parametrize("step", [python_bytes, *LONG])
def test_memory_that_is_not_torchs(step: Callable[[int], None]) -> None:
    found = find(step, smallest=8)
    assert_found_the_limit(found, lambda n: n * MIB)


def test_leak_is_reported() -> None:
    kept: list[torch.Tensor] = []

    def step(n: int) -> None:
        kept.append(torch.ones(n, MIB // 8, dtype=torch.uint8))

    with pytest.warns(RuntimeWarning, match="memory grows with every step"):
        found = find(step, largest=16)
    assert not kept
    leaks = {t.batch: t.leak_bytes for t in found.trials}
    assert leaks[16] == pytest.approx(2 * MIB, rel=0.05)
    assert "memory grows by 2.00 MiB in every step of 16" in str(found)


def test_steady_memory_is_no_leak(recwarn: pytest.WarningsRecorder) -> None:
    """State that the first step makes, and batches of other lengths, are none."""
    state: dict[str, torch.Tensor] = {}
    lengths = iter([3, 9, 4, 7, 5, 8, 2, 6] * 1000)

    def step(n: int) -> None:
        state.setdefault("momentum", torch.zeros(4 * MIB))
        torch.ones(n, next(lengths) * MIB // 8, dtype=torch.uint8)

    found = find(step, largest=64)
    assert not any(t.leak_bytes for t in found.trials)
    assert not recwarn.list


REAL = """
import json, torch
from torch import nn
from pathlib import Path
import pai_torchacc as ptac
from pai_torchacc.batch_size import limits, meter

torch.manual_seed(0)
ptac.enable_memory_pool()
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(),
                      nn.Flatten(), nn.Linear(16 * 28 * 28, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
def make_batch(n):
    return torch.randn(n, 3, 32, 32), torch.randint(10, (n,))
def step(batch):
    x, y = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
step(make_batch(2))
found = ptac.find_batch_size(step, make_batch, smallest=16, largest=128, seconds=0.01)
ptac.empty_cache()
ptac.reset_peak_memory_stats()
before = limits.status()["RssAnon"]
in_use = meter.in_use("current")
Path("/proc/self/clear_refs").write_text("5")
for _ in range(3):
    batch = make_batch(512)
    step(batch)
now = limits.status()
peak = now["VmHWM"] - now["RssFile"] - now["RssShmem"] - before
in_use = meter.in_use("peak") - in_use
print(json.dumps([found.memory.predict(512), in_use, peak]))
"""


@pytest.mark.long
def test_prediction_comes_true_in_the_program() -> None:
    """At four times the largest trial, and in the program itself, not in a child.

    What the process holds is more than what is in use, by the gaps between blocks.
    """
    predicted, in_use, held = json.loads(switching.python(REAL))
    print(f"\nMiB: {predicted / MIB:.1f}, {in_use / MIB:.1f}, {held / MIB:.1f}")
    assert in_use > 50 * MIB
    assert predicted == pytest.approx(in_use, rel=0.1)
    assert held < 1.25 * predicted
