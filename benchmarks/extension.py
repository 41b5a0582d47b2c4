"""What the extension does not export: its functions and data, and C beside it.

The library exports nothing but its module, and its symbol table names all that it has.
So functions and data of the very library that programs load are reached here.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from pai_torchacc import _C

ROOT = Path(__file__).parents[1]


@cache
def symbols() -> dict[str, int]:
    """Addresses in this process."""
    table = subprocess.run(
        ["nm", "--defined-only", _C.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    offsets = {line.split()[2]: int(line.split()[0], 16) for line in table.splitlines()}
    entry = ctypes.cast(ctypes.PyDLL(_C.__file__).PyInit__C, ctypes.c_void_p).value
    assert entry
    return {name: entry - offsets["PyInit__C"] + at for name, at in offsets.items()}


def function(name: str, result: object, *arguments: type) -> Callable[..., object]:
    """A function of the extension's, called with the GIL."""
    return ctypes.PYFUNCTYPE(result, *arguments)(symbols()[name])


def last_row(op: str) -> str | None:
    """The row that this thread last ran of the operator."""
    number = [name for name, *_ in _C.operators()].index(op)
    row = function("ptac_last_row", ctypes.c_void_p, ctypes.c_int)(number)
    if row is None:
        return None
    return ctypes.c_char_p.from_address(row + 8).value.decode()  # its second field


@cache
def compiled(*patterns: str) -> ctypes.CDLL:
    """A library of these C files of the repository."""
    sources = [str(path) for pattern in patterns for path in ROOT.glob(pattern)]
    with tempfile.TemporaryDirectory() as folder:
        library = str(Path(folder, "compiled.so"))
        command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-pthread", "-Icsrc"]
        subprocess.run([*command, *sources, "-o", library], cwd=ROOT, check=True)
        return ctypes.CDLL(library)
