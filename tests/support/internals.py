"""Functions of the extension that only tests call.

The library exports none of them, and its symbol table names them all. So tests reach
the functions and the data of the very library that programs load.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from functools import cache

from torch import Tensor

from pai_torchacc import _C


@cache
def _symbols() -> dict[str, int]:
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


def _function(name: str, result: object, *arguments: type) -> Callable[..., object]:
    return ctypes.PYFUNCTYPE(result, *arguments)(_symbols()[name])


def _number(op: str) -> int:
    return [name for name, _, _ in _C.operators()].index(op)


def inject_failure(op: str) -> None:
    """Break the next run of the operator's row before it writes."""
    _function("ptac_inject_failure", None, ctypes.c_int)(_number(op))


def reset_quarantine() -> None:
    """Lift all quarantines."""
    _function("ptac_chooser_reset_quarantine", None)()


def is_plain(tensor: Tensor) -> bool:
    """Whether this is a tensor that lean call paths take."""
    return bool(_function("ptac_is_plain", ctypes.c_bool, ctypes.py_object)(tensor))


def override_schemas() -> list[str]:
    """The schemas that overrides of aten read their arguments by."""
    n = ctypes.c_int()
    described = ctypes.POINTER(ctypes.POINTER(ctypes.c_char_p))
    overrides = _function("ptac_overrides", described, ctypes.POINTER(ctypes.c_int))(n)
    return [overrides[i][0].decode() for i in range(n.value)]  # the first field
