"""Calibration tables of GPUs, as files that tests make up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pai_torchacc import _C
from pai_torchacc.calibration import CUDA_COLUMNS, DEVICE


def write(path: Path, lines: Iterable[str], device: str | None = None) -> Path:
    """A table of device 0, or of the one of that name, with these lines."""
    name = _C.cuda_name(0) if device is None else device
    text = [f"{DEVICE}{name}", ",".join(CUDA_COLUMNS), *lines]
    path.write_text("\n".join(text) + "\n")
    return path
