"""Making a fork safe for OpenMP.

GNU's runtime keeps a team of workers for each thread that has run a parallel region. A
forked child inherits the record of the team and not the workers, and waits for them
forever. The runtimes of LLVM and Intel take care of forks themselves.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_PAUSE_SOFT = 1
"""``omp_pause_soft`` of OpenMP 5.0: settings stay."""


def pause() -> None:
    """Let this thread's workers go; its next parallel region starts new ones.

    Raises
    ------
    RuntimeError
        The runtime cannot let them go: it is older than GCC 9, or this is a parallel
        region.
    """
    for path in _runtimes():
        try:
            release = ctypes.CDLL(path).omp_pause_resource_all
        except AttributeError:
            raise RuntimeError(f"{path} cannot be forked: it lacks OpenMP 5") from None
        if release(_PAUSE_SOFT) != 0:
            raise RuntimeError(f"{path} cannot be forked now: it is in use")


def _runtimes() -> set[str]:
    """Files of GNU's runtime that are loaded; wheels bring copies of their own."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return set(re.findall(r"(/.*/libgomp[^/\n]*)$", maps, re.M))
