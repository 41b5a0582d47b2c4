"""The example in fresh processes, by torchrun and by ``launch`` in turn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_STOCK, _OURS = "stock", "launch"
_COMMANDS = {_STOCK: ["torch.distributed.run"], _OURS: ["pai_torchacc", "launch"]}
_EPOCHS = 4


def epochs(n_ranks: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of epochs by launcher; the first of each process does not count."""
    times: dict[str, list[float]] = {_STOCK: [], _OURS: []}
    for _ in range(rounds):
        for variant, module in _COMMANDS.items():
            times[variant] += _epochs([*module, "--nproc-per-node", str(n_ranks)])
    return times


def _epochs(launcher: list[str]) -> list[float]:
    command = [sys.executable, "-m", *launcher, "examples/distributed.py"]
    done = subprocess.run(
        [*command, "--epochs", str(_EPOCHS)],
        cwd=_ROOT,
        env=os.environ | {"PYTHONPATH": str(_ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    seconds = re.findall(r"^epoch \d+: loss [\d.]+, ([\d.]+) s$", done.stdout, re.M)
    return [float(s) * 1e3 for s in seconds[1:]]
