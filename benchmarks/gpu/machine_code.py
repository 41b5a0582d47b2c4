"""Machine code of all CUDA kernels, before anything is measured or compared."""

from __future__ import annotations

import threading
from typing import Any

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.cuda_kernels import providing


def is_emulated() -> bool:
    """Whether ``device="cuda"`` is the emulation of tests/cuda_emulation."""
    return torch.cuda.is_available() and torch.version.cuda is None


def provide(timeout_s: float = 300) -> dict[str, str]:
    """Have the units ready that can be; what became of those that are not.

    The program uses CUDA from here on.
    """
    c = _host.load()
    torch.zeros(1, device="cuda")
    with ptac.enable("operator_fusion"):
        for name, what in c.cuda_units().items():
            if what == "unasked":
                c.cuda_want(name)
        # In a thread, whose priority it lowers.
        thread = threading.Thread(target=providing.run, args=(c,), daemon=True)
        thread.start()
        thread.join(timeout_s)
        providing.wait(timeout_s)
    return {name: _why(c, name) for name, w in c.cuda_units().items() if w != "ready"}


def _why(c: Any, name: str) -> str:
    outcome = providing.state.outcomes.get(name)
    return (outcome and outcome.trouble) or c.cuda_units()[name]
