"""What the switch costs: training steps of a ResNet-18, and optimizers' steps alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pai_torchacc as ptac
from benchmarks.learning_rate.figures import Row
from benchmarks.learning_rate.methods import OURS, STOCK
from pai_torchacc.bench.measure import Timing, alternate
from pai_torchacc.bench.workloads import WORKLOADS, Task

WORKLOAD = "W5"
SMALL = ("SimpleCNN", "W1", "W3", "L10")
"""Models whose optimizers' steps, of SGD without and with momentum and of Adam, are
short enough for what each step asks of Python to show."""
ENABLED = "enable()"
FIRST, TIMED = 21, 4
"""Steps of an optimizer alone. The first ones measure their gradients apart, which the
training steps count and these do not."""
STEP, STEP_ALONE = "training step, times as long", "optimizer.step(), times as fast"

Prepare = Callable[[], object]


def _both() -> None:
    ptac.enable()
    ptac.enable_adaptive_lr()


def _enabled() -> None:
    ptac.disable()
    ptac.enable()


def measure(blocks: int = 10, block_s: float = 0.02) -> Iterator[Row]:
    """Rows of whole steps, and of the optimizer's alone."""
    try:
        yield from _steps(blocks, block_s)
        yield from _steps_alone(WORKLOAD, max(blocks // 3, 1))
        for workload in SMALL:
            yield from _steps_alone(workload, 2 * blocks)
    finally:
        ptac.disable()


def _steps(blocks: int, block_s: float) -> Iterator[Row]:
    tasks = {name: WORKLOADS[WORKLOAD].task() for name in (ENABLED, OURS)}
    timings = alternate(
        {
            ENABLED: (_enabled, tasks[ENABLED].train_step),
            OURS: (_both, tasks[OURS].train_step),
        },
        blocks,
        block_s,
    )
    alone, ours = timings[ENABLED], timings[OURS]
    for figure, value in (
        (STEP, ours.best / alone.best),
        (f"{STEP}, of medians", ours.median / alone.median),
    ):
        yield Row(figure, WORKLOAD, OURS, ENABLED, 1, value, "ratio")


def _steps_alone(workload: str, blocks: int) -> Iterator[Row]:
    timings = time_steps(
        {STOCK: ptac.disable, ENABLED: _enabled, OURS: _both},
        WORKLOADS[workload].task,
        blocks,
    )
    stock = timings.pop(STOCK)
    for name, timing in timings.items():
        for figure, value in (
            (STEP_ALONE, stock.best / timing.best),
            (f"{STEP_ALONE}, of medians", stock.median / timing.median),
        ):
            yield Row(figure, workload, name, STOCK, 1, value, "ratio")


def time_steps(
    prepare: dict[str, Prepare], make: Callable[[], Task], blocks: int
) -> dict[str, Timing]:
    """Time ``optimizer.step()`` in turn, after a backward pass that is not timed."""
    tasks = {name: make() for name in prepare}
    times: dict[str, list[float]] = {name: [] for name in prepare}
    for _ in range(blocks):
        for name, task in tasks.items():
            prepare[name]()
            for step in range(FIRST + TIMED):
                x, y = next(task.batches)
                task.optimizer.zero_grad()
                task.criterion(task.model(x), y).backward()
                start = time.perf_counter()
                task.optimizer.step()
                if step >= FIRST:
                    times[name].append(time.perf_counter() - start)
    return {name: Timing(tuple(t)) for name, t in times.items()}
