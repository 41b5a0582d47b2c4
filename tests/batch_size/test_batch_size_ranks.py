"""find_batch_size() in two processes that train together, over Gloo on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import switching

PATIENCE_S = 180

BEGIN = """
import json, os, sys, torch
from datetime import timedelta
from torch import distributed, nn
import pai_torchacc as ptac

rank, folder = int(sys.argv[1]), sys.argv[2]
distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2,
    timeout=timedelta(seconds=120),
)
torch.manual_seed(0)
model = nn.Linear(32, 8)
def make_batch(n):
    return torch.randn(n, 32)
def step(batch):
    model.zero_grad()
    model(batch).square().mean().backward()
def say(**what):
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(what, file)
    distributed.barrier()
    distributed.destroy_process_group()
def find(**options):
    return ptac.find_batch_size(step, make_batch, seconds=0.01, **options)
"""

DDP = """
model = nn.parallel.DistributedDataParallel(
    nn.Sequential(nn.Linear(32, 8), nn.BatchNorm1d(8))
)
x = torch.full((4, 32), float(rank))
step(x)
before = [p.clone() for p in model.parameters()]
found = find(keep_effective=256, largest=64)
same = all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
step(x)  # averages over both ranks again
grads = [p.grad.tolist() for p in model.parameters()]
say(batch=found.batch, accumulation=found.accumulation, world=found.world_size,
    same=same, grads=grads, tried=[t.batch for t in found.trials], text=str(found))
"""

LESS_ROOM = """
# Rank 1 can do batches of 16, rank 0 of 64, and both are better the larger they are.
def step(batch):
    if len(batch) > (64, 16)[rank]:
        raise MemoryError
    for _ in range(200_000):
        pass
found = find(largest=256)
say(batch=found.batch, accumulation=found.accumulation)
"""

FAILING = """
if rank == 1:
    def step(batch):
        raise LookupError("rank 1 has lost its data")
try:
    found = find(largest=16)
except Exception as error:
    say(kind=type(error).__name__, text=str(error))
"""

WRONG_ARGUMENT = """
try:
    find(largest=16, budget=0.9 if rank == 0 else 9)
except Exception as error:
    say(kind=type(error).__name__, text=str(error))
"""

ODD = """
try:
    find(keep_effective=255)
except Exception as error:
    say(kind=type(error).__name__, text=str(error))
"""

COLLECTIVE = """
def step(batch):
    distributed.all_reduce(torch.ones(1))
try:
    find()
except Exception as error:
    say(kind=type(error).__name__, text=str(error))
"""


def run(program: str, folder: Path) -> list[dict]:
    """What each rank says; all processes have ended."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", BEGIN + program, str(rank), str(folder)],
            env=switching.environment() | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            _, errors = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0, errors
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.long
def test_all_take_the_same_batch_and_ddp_goes_on(tmp_path: Path) -> None:
    first, second = run(DDP, tmp_path)
    assert first["batch"] == second["batch"]
    assert first["accumulation"] == second["accumulation"]
    assert first["batch"] * first["accumulation"] * 2 == 256
    assert first["world"] == 2
    assert "x 2 processes" in first["text"]
    assert all(128 % n == 0 for n in first["tried"])
    assert first["same"] and second["same"]
    assert first["grads"] == second["grads"]


def test_smallest_of_all(tmp_path: Path) -> None:
    first, second = run(LESS_ROOM, tmp_path)
    assert first == second
    assert first["batch"] <= 16 and first["accumulation"] == 1


@pytest.mark.long
def test_failure_of_one_is_raised_in_all(tmp_path: Path) -> None:
    first, second = run(FAILING, tmp_path)
    assert second == {"kind": "LookupError", "text": "rank 1 has lost its data"}
    assert first["kind"] == "RuntimeError"
    assert first["text"] == (
        "find_batch_size failed in rank 1: LookupError: rank 1 has lost its data"
    )


@pytest.mark.long
def test_wrong_argument_in_one_is_raised_in_all(tmp_path: Path) -> None:
    first, second = run(WRONG_ARGUMENT, tmp_path)
    assert (first["kind"], second["kind"]) == ("RuntimeError", "ValueError")
    assert "failed in rank 1: ValueError: budget=9" in first["text"]


@pytest.mark.long
def test_effective_batch_of_all_processes(tmp_path: Path) -> None:
    for answer in run(ODD, tmp_path):
        assert answer["kind"] == "ValueError"
        assert (
            "keep_effective=255 is not a multiple of the 2 processes" in answer["text"]
        )


@pytest.mark.long
def test_collectives_in_a_trial_raise(tmp_path: Path) -> None:
    """They would wait for threads that a child does not have."""
    for answer in run(COLLECTIVE, tmp_path):
        assert answer["kind"] == "ValueError"
        assert "process group has not been initialized" in answer["text"]
