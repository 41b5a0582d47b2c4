"""Programs in several ranks on this machine, over Gloo on loopback, bounded in time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import switching

TIMEOUT_S = 60
"""For a program that nothing is wrong with, on a busy machine."""

TORCHRUN = ("torch.distributed.run",)
LAUNCH = ("pai_torchacc", "launch")

HEAD = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
import pai_torchacc as ptac
"""
"""What programs of tests begin with."""


def environment(**more: str | None) -> dict[str, str]:
    """One thread a rank, and loopback only; without what is None."""
    env = switching.environment() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    changed: dict[str, str | None] = env | {"TORCH_CPP_LOG_LEVEL": "ERROR"} | more
    return {name: value for name, value in changed.items() if value is not None}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def started(
    script: Path, n: int, *words: str, by: tuple[str, ...] = TORCHRUN, **env: str | None
) -> Iterator[subprocess.Popen[str]]:
    """A launcher and its ranks in a session of their own, all gone at the end."""
    command = [sys.executable, "-m", *by, "--nproc-per-node", str(n), str(script)]
    process = subprocess.Popen(
        [*command, *words],
        env=environment(**env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        for pid in in_session(process.pid):
            kill(pid)
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def in_session(session: int) -> list[int]:
    """Processes of a session: ranks have groups of their own, but no other session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue
            state, _, _, of = text.rpartition(")")[2].split()[:4]
            if int(of) == session and state != "Z":
                found.append(int(folder.name))
    return found


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def write(source: str, folder: Path) -> Path:
    """The program as a file."""
    script = folder / "program.py"
    script.write_text(HEAD + source)
    return script


def launched(
    source: str,
    n: int,
    folder: Path,
    by: tuple[str, ...],
    status: int = 0,
    **env: str | None,
) -> str:
    """What a program and its launcher print; they end with this status."""
    with started(write(source, folder), n, by=by, **env) as process:
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == status, output
        assert_alone(process.pid)
    return output


def run(source: str, n: int, folder: Path, *ends: int, **env: str | None) -> str:
    """What the ranks of a program print, without a launcher, of which rank 0 has most.

    They end with these statuses; without any, all have to do well.
    """
    script, port, processes, said = write(source, folder), str(free_port()), [], []
    with ExitStack() as stack:
        for rank in range(n):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n)}
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            # Files never fill up, as pipes do that nobody reads yet.
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(script)],
                    env=environment(**place, **env),
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
            stack.callback(processes[-1].wait)
            stack.callback(processes[-1].kill)
            said.append(output)
        for process in processes:
            process.wait(timeout=TIMEOUT_S)
        for output in said:
            output.seek(0)
        text = "".join(output.read() for output in said)
    assert [p.returncode for p in processes] == list(ends or [0] * n), text
    return text


def assert_alone(session: int) -> None:
    """No process of the session is left: each has a moment to be reaped."""
    until = time.monotonic() + 10
    while (left := in_session(session)) and time.monotonic() < until:
        time.sleep(0.02)
    assert not left, left


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """Lines up to the one that has this text; fails where they end before."""
    said = []
    assert process.stdout
    for line in process.stdout:
        said.append(line)
        if text in line:
            return "".join(said)
    raise AssertionError("".join(said))
