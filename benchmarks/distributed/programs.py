"""What ranks run: ``python -m benchmarks.distributed.programs NAME OPTIONS``.

Variants take turns within one process, all ranks together. Rank 0 prints a document.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import pai_torchacc as ptac
from benchmarks.distributed import models
from pai_torchacc.distributed import cores

Work = Callable[[], Any]


def batch_of(model: str, n: int) -> tuple[Tensor, Tensor]:
    """Random images, the same on every run, others on every rank."""
    torch.manual_seed(1 + dist.get_rank())
    shape = (n, 784) if model == "mlp" else (n, 1, 28, 28)
    return torch.randn(shape), torch.randint(0, 10, (n,))


@contextmanager
def bound(is_bound: bool) -> Iterator[None]:
    """All threads of this process on this rank's share of the cores."""
    before = cores.usable()
    own = cores.share(before, None, dist.get_rank(), dist.get_world_size())
    try:
        _bind(own if is_bound else before)
        yield
    finally:
        _bind(before)


def _bind(where: list[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # a thread that has ended meanwhile
            os.sched_setaffinity(int(task.name), where)


def train(model: str, batch: int, steps: int, blocks: int, variants: list[str]) -> Any:
    """Milliseconds of a step by variant: words of stock, ours, bound, none, bf16."""
    make = {"mlp": models.mlp, "cnn": models.small_cnn}[model]
    x, y = batch_of(model, batch)
    work = {}
    for variant in variants:
        comm = [w for w in variant.split() if w in ("none", "bf16")]
        torch.manual_seed(0)
        with ptac.tune_ddp(comm[0]) if comm else nullcontext():  # type: ignore[arg-type]
            wrapper = DistributedDataParallel(make())
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.01)
        work[variant] = (wrapper, optimizer, comm)
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for block in range(blocks + 1):
        for variant, (wrapper, optimizer, comm) in work.items():
            ours = ptac.enable() if "ours" in variant.split() else nullcontext()
            tuned = ptac.tune_ddp(comm[0]) if comm else nullcontext()  # type: ignore[arg-type]
            with ours, tuned, bound("bound" in variant.split()):
                step = partial(_step, wrapper, optimizer, x, y)
                ms = _milliseconds(step, steps)
            if block:
                times[variant].append(ms)
    return times


def _step(wrapper: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    found: Any = wrapper(x)
    if found.dim() == 1:  # losses
        loss = found.mean()
    else:
        loss = nn.functional.cross_entropy(found.flatten(0, -2), y.flatten())
    loss.backward()
    optimizer.step()


def _milliseconds(work: Work, n: int, is_alone: bool = False) -> float:
    work()
    if not is_alone:
        dist.barrier()
    start = time.perf_counter()
    for _ in range(n):
        work()
    return (time.perf_counter() - start) / n * 1e3


def divided(model: str, steps: int, blocks: int) -> Any:
    """Milliseconds of a step of one batch: by one process, divided, by DDP by hand.

    One process has the threads of all ranks; it takes its turn on rank 0 while the
    others sleep. The script for DDP has its rank's rows, as a DistributedSampler gives.
    """
    make, make_batch = models.WHOLE[model]
    torch.manual_seed(1)
    x, y = make_batch()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    start = make()
    work: dict[str, Work] = {}
    for variant in ("stock", "ours", "DDP"):
        wrapper: nn.Module = nn.DataParallel(copy.deepcopy(start))
        if variant == "DDP":
            wrapper = DistributedDataParallel(copy.deepcopy(start))
        optimizer = torch.optim.SGD(wrapper.parameters(), lr=0.01)
        rows = slice(rank, None, size) if variant == "DDP" else slice(None)
        work[variant] = partial(_step, wrapper, optimizer, x[rows], y[rows])
    times: dict[str, list[float]] = {variant: [] for variant in work}
    for block in range(blocks + 1):
        for variant, step in work.items():
            dist.barrier()
            if variant == "stock":
                if rank:
                    continue
                torch.set_num_threads(size)
            with ptac.enable_data_parallelism("ddp" if variant == "ours" else "off"):
                ms = _milliseconds(step, steps, is_alone=variant == "stock")
            torch.set_num_threads(1)
            if block:
                times[variant].append(ms)
    return times


def allreduce(sizes: list[int], times: int, is_bound: bool) -> Any:
    """Seconds of an all-reduce of so many bytes of float32: median of the slowest."""
    buffers = {n: torch.zeros(n // 4) for n in sizes}
    found: dict[int, list[float]] = {n: [] for n in sizes}
    with bound(is_bound):
        for i in range(times + 2):
            for n, buffer in buffers.items():
                dist.barrier()
                start = time.perf_counter()
                dist.all_reduce(buffer)
                if i > 1:
                    found[n].append(time.perf_counter() - start)
    medians = torch.tensor([statistics.median(t) for t in found.values()])
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return dict(zip(map(str, sizes), medians.tolist(), strict=True))


def fsdp(width: int, n_blocks: int, steps: int, blocks: int) -> Any:
    """Milliseconds of a step of fully_shard, as by default and by tune_fsdp."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    layers = [
        nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(n_blocks)
    ]
    model = nn.Sequential(*layers, nn.Linear(width, 10))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(32, width), torch.randint(0, 10, (32,))
    times: dict[str, list[float]] = {"stock": [], "tune_fsdp": []}
    for block in range(blocks + 1):
        for variant, found in times.items():
            keep = 1 << 40 if variant == "tune_fsdp" else 0
            with ptac.tune_fsdp(model, keep=keep):
                ms = _milliseconds(partial(_step, model, optimizer, x, y), steps)
            if block:
                found.append(ms)
    return times


def watched(calls: int, blocks: int) -> Any:
    """Milliseconds of a small all-reduce, watched and not."""
    buffer = torch.zeros(1024)

    def work() -> None:
        for _ in range(calls):
            dist.all_reduce(buffer)

    times: dict[str, list[float]] = {"stock": [], "watch_ranks": []}
    for block in range(blocks + 1):
        for variant, found in times.items():
            is_watched = variant == "watch_ranks"
            with ptac.watch_ranks() if is_watched else nullcontext():
                ms = _milliseconds(work, 1) / calls
            if block:
                found.append(ms)
    return times


PROGRAMS: dict[str, Callable[..., Any]] = {
    program.__name__: program for program in (train, divided, allreduce, fsdp, watched)
}


def main(name: str, options: str) -> None:
    """Run one program in this rank."""
    dist.init_process_group("gloo")
    try:
        found = PROGRAMS[name](**json.loads(options))
        if dist.get_rank() == 0:
            print(json.dumps(found))
        dist.barrier()
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
