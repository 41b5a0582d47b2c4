"""Ranks that do not come, fail or die, and the example; all bounded in time."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import textwrap
from pathlib import Path

import launched as ranks
import native
import pytest
import switching

EXAMPLE = native.ROOT / "examples" / "data_parallel.py"

TRAINING = """
    import os, random, signal, torch
    import pai_torchacc as ptac

    {}
    ptac.enable_data_parallelism("ddp")
    batch = torch.randn(8, 4) + random.random()
    model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
    for step in range(5):
        {}
        model(batch).sum().backward()
    wrong = model.module.weight.grad - 5 * batch.sum(0)
    print("trained", bool(wrong.abs().max() < 1e-4))
    print(ptac.explain_parallelism())
"""


def training(folder: Path, each_step: str = "", first: str = "") -> Path:
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING).format(first, each_step))
    return script


def trained(done: subprocess.CompletedProcess[str]) -> str:
    """What a rank has printed, whose gradients were right."""
    assert done.returncode == 0, done.stderr
    assert "trained True" in done.stdout
    return done.stdout


def alone(script: Path, port: int, **more: str) -> str:
    """What is said to the first of two ranks that trains by itself."""
    done = ranks.bounded([str(script)], ranks.place(0, 2, port) | more)
    trained(done)
    return str(done.stderr)


@pytest.mark.long
def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    """The others wait for a bounded time, then each trains by itself, and is told."""
    first = "from pai_torchacc.data_parallelism import group; group._WAIT_S = 1"
    told = alone(training(tmp_path, first=first), ranks.free_port())
    assert "data_parallelism is not active: the processes did not meet" in told


@pytest.mark.long
def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        told = alone(training(tmp_path), taken.getsockname()[1])
    assert "the processes did not meet" in told


@pytest.mark.long
def test_scripts_without_seeds_draw_the_same(tmp_path: Path) -> None:
    """Else each process would have a batch of its own, and none would be divided."""
    for done in ranks.side_by_side(2, training(tmp_path)):
        assert "5 calls divided" in trained(done)
        assert not done.stderr


@pytest.mark.long
def test_a_group_of_the_scripts_own_is_used(tmp_path: Path) -> None:
    first = "torch.distributed.init_process_group('gloo'); torch.manual_seed(0)"
    first += "; random.seed(0)"
    for done in ranks.side_by_side(2, training(tmp_path, first=first)):
        assert "5 calls divided" in trained(done)


SPAWNING = """
    import torch
    from torch.utils.data import DataLoader
    import pai_torchacc as ptac

    ptac.enable_data_parallelism("ddp")
    if __name__ == "__main__":
        model = torch.nn.DataParallel(torch.nn.Linear(4, 1))
        how = {"num_workers": 1, "multiprocessing_context": "spawn"}
        for batch in DataLoader(torch.ones(16, 4), 8, shuffle=True, **how):
            model(batch).sum().backward()
        print(ptac.explain_parallelism())
"""


@pytest.mark.long
def test_spawned_workers_are_no_ranks(tmp_path: Path) -> None:
    """They import the script again, and have the variables of their rank."""
    script = tmp_path / "spawning.py"
    script.write_text(textwrap.dedent(SPAWNING))
    for done in ranks.side_by_side(2, script):
        assert done.returncode == 0, done.stderr
        assert not done.stderr
        assert "2 calls divided" in done.stdout


FAILING = "if step == 2 and os.environ['RANK'] == '1': {}"


@pytest.mark.long
def test_a_rank_that_raises_ends_the_others(tmp_path: Path) -> None:
    """By themselves, also where no launcher looks after them."""
    script = training(tmp_path, FAILING.format("raise ValueError('no more data')"))
    other, failing = ranks.side_by_side(2, script)
    assert failing.returncode == 1 and "ValueError: no more data" in failing.stderr
    assert other.returncode == 1 and "RuntimeError" in other.stderr
    assert "trained" not in other.stdout + failing.stdout


@pytest.mark.long
def test_a_rank_that_is_killed_ends_the_others(tmp_path: Path) -> None:
    script = training(tmp_path, FAILING.format("os.kill(os.getpid(), signal.SIGKILL)"))
    other, killed = ranks.side_by_side(2, script)
    assert killed.returncode == -signal.SIGKILL
    assert other.returncode == 1 and "RuntimeError" in other.stderr
    assert "trained" not in other.stdout + killed.stdout


def figures(text: str) -> list[tuple[float, float]]:
    rows = re.findall(r"^epoch \d: loss ([\d.]+), accuracy ([\d.]+)$", text, re.M)
    return [(float(loss), float(accuracy)) for loss, accuracy in rows]


def test_example_in_one_process_and_in_two() -> None:
    """The same figures, on every rank."""
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    plain = switching.forked([str(EXAMPLE), "--stock"])
    alone = switching.forked([str(EXAMPLE)])
    two = ranks.side_by_side(2, EXAMPLE)
    for done in (plain, alone, *two):
        assert done.returncode == 0, done.stderr
        assert not done.stderr
    wanted = figures(plain.stdout)
    assert len(wanted) == 3 and wanted[-1][1] > 0.8
    assert figures(alone.stdout) == wanted
    assert "needs several processes" in alone.stdout
    for done in two:
        for found, row in zip(figures(done.stdout), wanted, strict=True):
            assert found == pytest.approx(row, rel=1e-3)
        assert "87 calls divided" in done.stdout
