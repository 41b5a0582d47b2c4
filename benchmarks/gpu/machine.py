"""What a machine has for us: ``python -m benchmarks.gpu.machine`` prints it.

Fails where the package is not built.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator

import torch

import pai_torchacc as ptac
from pai_torchacc import _host
from pai_torchacc.cuda_kernels import nvrtc, shipped


def facts() -> Iterator[str]:
    """Lines about torch, its devices, and our kernels."""
    yield f"torch {torch.__version__}, CUDA {torch.version.cuda}"
    yield f"Python {platform.python_version()}, {platform.platform()}"
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            gib = p.total_memory / 2**30
            yield f"device {i}: {p.name}, sm_{p.major}{p.minor}, {gib:.0f} GiB"
    else:
        yield "no CUDA device"
    yield f"pai_torchacc {ptac.__version__}"
    with ptac.enable("operator_fusion") as handle:
        status = ptac.status()["operator_fusion"]
        yield f"operators on CUDA: {status.get('cuda', handle.reason)}"
    yield f"NVRTC: {'there' if nvrtc.has_file(torch) else 'none'}"
    package = shipped.contents()
    if package is None:
        yield "the package was built without its kernels"
        return
    units = package.content["units"]
    fat = sorted(name for name, unit in units.items() if unit["fat_binary"])
    rest = sorted(units.keys() - set(fat))
    yield f"units with a fat binary: {', '.join(fat) or 'none'}"
    yield f"units without: {', '.join(rest) or 'none'}"


def main() -> int:
    """Print them; 1 where the package does not work."""
    try:
        _host.load()
    except _host.Unavailable as error:
        print(f"the package does not work: {error}")
        return 1
    for line in facts():
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
