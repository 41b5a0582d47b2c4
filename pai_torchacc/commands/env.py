"""``python -m pai_torchacc env``: what to paste into a bug report."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from pai_torchacc import _environment, _host, _report

_READ = ("PTAC_", "OMP_", "MKL_", "KMP_", "GOMP_", "PYTORCH_", "TORCH_", "MALLOC_")
_READ_TOO = ("LD_PRELOAD", "ONEDNN_MAX_CPU_ISA", "CUDA_VISIBLE_DEVICES")
_PACKAGES = ("numpy", "torchvision", "lightning", "transformers", "accelerate")


def document() -> dict[str, Any]:
    """System, versions, processor, torch's settings, variables that matter."""
    versions = _report.versions()
    try:
        extension = Path(_host.load().__file__).name
    except _host.Unavailable as error:
        extension = f"not in use: {error}"
    return {
        "pai_torchacc": versions["pai_torchacc"],
        "platform": f"{platform.platform()}, {'-'.join(platform.libc_ver())}",
        "python": f"{versions['python']} ({platform.python_implementation()})",
        "executable": sys.executable,
        "package": str(Path(__file__).parent.parent),
        "cpu": f"{versions['cpu']} ({versions['isa']})",
        "cores": f"{_cores()} of {os.cpu_count()} usable",
        "memory_gib": _memory_gib(),
        "extension": extension,
        **_torch(),
        "packages": {p: v for p in _PACKAGES if (v := _version(p))},
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_READ) or name in _READ_TOO
        },
        "remarks": _environment.unknown_variables(),
    }


def _torch() -> dict[str, Any]:
    try:
        import torch
    except ImportError as error:
        return {"torch": f"cannot be imported: {error}"}
    has_cuda = torch.cuda.is_available()
    threads, interop = torch.get_num_threads(), torch.get_num_interop_threads()
    return {
        "torch": torch.__version__,
        "threads": f"{threads}, {interop} interop",
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "libraries": {
            "mkl": torch.backends.mkl.is_available(),
            "onednn": torch.backends.mkldnn.is_available(),
            "cuda": torch.version.cuda,
        },
        "gpus": [
            torch.cuda.get_device_name(i)
            for i in range(torch.cuda.device_count() if has_cuda else 0)
        ],
    }


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _memory_gib() -> float | None:
    try:
        n_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
    return round(n_bytes / 2**30, 1)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def as_text(content: dict[str, Any]) -> str:
    """The document as a list in Markdown."""
    return "\n".join(f"- {key}: {_in_line(value)}" for key, value in content.items())


def _in_line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return str(value)
