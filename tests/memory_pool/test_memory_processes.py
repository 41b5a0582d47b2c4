"""The memory pool in processes with limits, and with another malloc beneath it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import switching

import pai_torchacc as ptac

PEERS = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4"),
    "jemalloc": ("libjemalloc.so.2",),
}
"""From Debian's libtcmalloc-minimal4 and libjemalloc2."""

FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")

TRAINING = """
import sys, threading, torch, internals
import pai_torchacc as ptac
from pai_torchacc import _C

def train():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(),
                                torch.nn.Linear(512, 256))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(512, 256)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()

stock = train()
handle = ptac.enable_memory_pool()
assert handle or handle.reason
x = torch.randn(1 << 20)
print("ours" if internals.pool_owns(x.data_ptr()) else f"inert: {handle.reason}")
assert train() == stock
holder = [x]
del x
ptac.disable()
thread = threading.Thread(target=holder.clear)
thread.start()
thread.join()
assert _C.pool_state() == ("off", 0), _C.pool_state()
assert train() == stock
"""


FILL = """
def fill(make):
    kept = []
    try:
        while True:
            kept.append(make(1 << 24))
    except RuntimeError as error:
        assert "can't allocate memory" in str(error)
    return kept
"""


def library(peer: str) -> str:
    for folder in FOLDERS:
        for name in PEERS[peer]:
            if (path := Path(folder, name)).exists():
                return str(path)
    pytest.skip(f"{peer} is not installed (Debian: see PEERS)")


@pytest.mark.parametrize("peer", PEERS)
def test_another_malloc_beneath(peer: str) -> None:
    path = library(peer)
    program = TRAINING + f"assert {path!r} in open('/proc/self/maps').read()\n"
    assert switching.python(program, LD_PRELOAD=path).strip() == "ours"


def test_libc_beneath() -> None:
    assert switching.python(TRAINING, fresh=True).strip() == "ours"


def test_under_a_limit_of_addresses() -> None:
    """The arena is smaller then, and beyond the limit torch's own error comes."""
    program = """
import resource, internals
limit = 4 << 30
import torch, pai_torchacc as ptac
from pai_torchacc import _C
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
handle = ptac.enable_memory_pool()
assert handle, handle.reason
x = torch.ones(1 << 20)
assert internals.pool_owns(x.data_ptr())
kept = fill(torch.ones)
print(len(kept))
assert all(k.min() == 1 == k.max() for k in kept[::7])  # takes no more memory
del kept
assert torch.ones(1 << 24).sum() == 1 << 24
"""
    assert int(switching.python(FILL + program, fresh=True)) > 10


def memory_group() -> Path | None:
    """A folder in which groups with a limit can be made (version 1), as root."""
    rows = Path("/proc/self/cgroup").read_text().splitlines()
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers == "memory":
            return Path("/sys/fs/cgroup/memory" + path)
    return None


def test_the_control_group_s_limit_is_the_cap() -> None:
    parent = memory_group()
    if parent is None or not os.access(parent, os.W_OK):
        pytest.skip("no control group for memory can be made here")
    group = parent / f"pai_torchacc_test_{os.getpid()}"
    limit = 900 << 20
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError as error:
        pytest.skip(f"no control group for memory can be made here: {error}")
    program = f"""
import os, pathlib
pathlib.Path({str(group)!r}, "tasks").write_text(str(os.getpid()))
import torch, pai_torchacc as ptac
from pai_torchacc import _C
assert _C.memory_limit() == {limit}
assert ptac.enable_memory_pool()
kept = fill(torch.empty)
n = ptac.memory_stats()["reserved_bytes.all.peak"]
assert 0.8 * {limit} < n <= 0.9 * {limit}, n
print("capped")
"""
    try:
        assert switching.python(FILL + program, fresh=True).strip() == "capped"
    finally:
        group.rmdir()


def test_a_program_ended_by_a_signal() -> None:
    program = """
import os, signal, torch, pai_torchacc as ptac
ptac.enable_memory_pool()
kept = torch.ones(1 << 20)
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = switching.forked(["-c", program])
    assert done.returncode == -signal.SIGTERM


def test_spawned_and_forked_workers(tmp_path: Path) -> None:
    program = """
import multiprocessing, torch
import pai_torchacc as ptac

def work(n):
    torch.set_num_threads(1)
    ptac.enable_memory_pool()
    return float(torch.full((1 << 18,), float(n)).sum())

if __name__ == "__main__":
    ptac.enable_memory_pool()
    mine = torch.ones(1 << 20)
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(work, range(8)) == [n * 2.0**18 for n in range(8)]
    assert mine.sum() == 1 << 20
    print("done")
"""
    path = tmp_path / "workers.py"
    path.write_text(program)
    done = switching.forked([str(path)])
    assert done.stdout.strip() == "done", done.stderr


def test_no_driver_is_a_reason() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    handle = ptac.enable_memory_pool(device="cuda")
    assert not handle
    assert handle.reason
    ptac.disable()
