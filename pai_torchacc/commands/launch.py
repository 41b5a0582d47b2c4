"""``python -m pai_torchacc launch``: torchrun with everything enabled in every rank.

The process becomes ``python -m torch.distributed.run`` with the arguments as they are.
What it starts finds the environment that ``run`` sets, with two differences:
``watch_ranks`` is on too, and each rank takes its share of threads
(:mod:`pai_torchacc.distributed.cores`) unless the user has set ``OMP_NUM_THREADS``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pai_torchacc.commands import run
from pai_torchacc.distributed import cores

FEATURES = "all,watch_ranks"

_NAMES_KEPT = "64"
"""Collectives that torch's flight recorder keeps: few are read quickly at a fault."""


def prepare(
    args: list[str], json_file: str | None, device: str | None
) -> Callable[[], NoReturn]:
    """Set the environment; what is returned becomes torchrun.

    Every rank writes its report to ``json_file``, as ``PTAC_REPORT`` describes.
    """
    if json_file:
        os.environ["PTAC_REPORT"] = str(Path(json_file).with_suffix(".json").absolute())
    run.prepare_environment(FEATURES, device)
    os.environ[run.LAUNCHER] = str(os.getpid())
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", _NAMES_KEPT)
    has_binding = any(a.startswith(("--numa-binding", "--numa_binding")) for a in args)
    if "OMP_NUM_THREADS" not in os.environ and not has_binding:
        os.environ[cores.SHARED_OUT] = "auto"
        os.environ["OMP_NUM_THREADS"] = "1"  # else torchrun sets it, and says so
    command = [sys.executable, "-m", "torch.distributed.run", *args]

    def become() -> NoReturn:
        sys.stdout.flush()
        os.execvpe(sys.executable, command, os.environ)

    return become
