"""Starting a program in several ranks, here or on a network; what rank 0 found."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.distributed.link import Network

_ROOT = Path(__file__).parents[2]
_PORT = 29400  # of a network that nobody else is on


def run(
    program: str,
    n: int,
    network: Network | None = None,
    timeout: float = 300,
    **more: Any,
) -> Any:
    """Run one of :mod:`.programs` with these options; the document of rank 0.

    Every rank has one thread. All processes are gone afterwards.
    """
    words = [sys.executable, "-m", "benchmarks.distributed.programs", program]
    words.append(json.dumps(more))
    started = []
    port = _PORT if network else _free_port()
    try:
        for rank in range(n):
            command = network.command(rank, words) if network else words
            output = subprocess.PIPE if rank == 0 else None
            environment = _environment(rank, n, port, network)
            started.append(
                subprocess.Popen(
                    command, env=environment, cwd=_ROOT, stdout=output, text=True
                )
            )
        text, _ = started[0].communicate(timeout=timeout)
        for process in started:
            if process.wait(timeout=30):
                raise RuntimeError(f"{program}: a rank ended with {process.returncode}")
    finally:
        for process in started:
            process.kill()
            process.wait()
    return json.loads(text.splitlines()[-1])


def _environment(
    rank: int, n: int, port: int, network: Network | None
) -> dict[str, str]:
    here = {
        "RANK": rank,
        "WORLD_SIZE": n,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": n,
        "MASTER_ADDR": network.address if network else "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": network.interface if network else "lo",
        "OMP_NUM_THREADS": 1,
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    return os.environ | {name: str(value) for name, value in here.items()}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
