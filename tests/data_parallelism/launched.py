"""Programs that several processes run together, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import native

PATIENCE_S = 300
"""What a run may take on a busy machine before it counts as hung."""


def environment(**more: str) -> dict[str, str]:
    """One thread a rank, on loopback; nothing said of ranks but what is here."""
    told = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    kept = {k: v for k, v in os.environ.items() if k not in told}
    path = os.pathsep.join([str(native.ROOT), str(native.ROOT / "tests" / "support")])
    own = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    return {**kept, **own, **more}


def together(
    n: int, program: Path, *args: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script on ``n`` ranks; what their launcher has printed and returned."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={n}"]
    return bounded([*launcher, str(program), *args], env or environment())


def side_by_side(n: int, program: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run a script on ``n`` ranks that no launcher looks after."""
    port = free_port()
    running = [_start([str(program)], place(rank, n, port)) for rank in range(n)]
    return _ended(running)


def bounded(arguments: list[str], env: dict[str, str]) -> Any:
    """Run Python with these arguments; kill it and its children if it hangs."""
    return _ended([_start(arguments, env)])[0]


def place(rank: int, n: int, port: int) -> dict[str, str]:
    """The environment of a rank."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return environment(RANK=str(rank), WORLD_SIZE=str(n), **where)


def free_port() -> int:
    """A port of loopback that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def _start(arguments: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _ended(
    running: list[subprocess.Popen[str]],
) -> list[subprocess.CompletedProcess[str]]:
    try:
        texts = [process.communicate(timeout=PATIENCE_S) for process in running]
    finally:
        for process in running:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, out, err)
        for process, (out, err) in zip(running, texts, strict=True)
    ]


def results(folder: Path, n: int) -> list[dict[str, Any]]:
    """What each rank has written, in the order of ranks."""
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(n)]
