"""Functions of the extension that only tests call.

The library exports none of them: ``benchmarks/extension.py`` says how they are found.
"""

from __future__ import annotations

import ctypes
import itertools

from torch import Tensor

from benchmarks.extension import function, symbols
from pai_torchacc import _C


def _number(op: str) -> int:
    return [name for name, _, _ in _C.operators()].index(op)


def inject_failure(op: str) -> None:
    """Break the next run of the operator's row before it writes."""
    function("ptac_inject_failure", None, ctypes.c_int)(_number(op))


def reset_quarantine() -> None:
    """Lift all quarantines."""
    function("ptac_chooser_reset_quarantine", None)()


def is_plain(tensor: Tensor) -> bool:
    """Whether this is a tensor that lean call paths take."""
    return bool(function("ptac_is_plain", ctypes.c_bool, ctypes.py_object)(tensor))


def override_schemas() -> list[str]:
    """The schemas that overrides of aten read their arguments by."""
    described = ctypes.POINTER(ctypes.c_char_p)  # the first field
    override_at = function("ptac_override_at", described, ctypes.c_int)
    found = itertools.takewhile(bool, map(override_at, itertools.count()))
    return [override[0].decode() for override in found]


def override_names() -> list[str]:
    """Operators of aten, one for each description."""
    return [schema.partition("(")[0] for schema in override_schemas()]


_WORDS = (len(_C.operators()) + 63) // 64


class _Places(ctypes.Structure):
    """ptac_places of csrc/bind/torch/overrides/override.h."""

    _fields_ = (("on", ctypes.c_uint64 * _WORDS * 2),)


def override_typed() -> list[str]:
    """Operators that are overridden and that torch calls without boxing arguments."""
    places = function("ptac_override_installed", _Places, ctypes.c_bool)(True)
    return [
        prefix + name
        for prefix, bits in zip(("", "cuda:"), places.on, strict=True)
        for i, (name, *_) in enumerate(_C.operators())
        if bits[i // 64] >> i % 64 & 1
    ]


def pool_owns(address: int) -> bool:
    """Whether this address lies in the memory pool's arena."""
    region, size_bits = 2 << 20, 28  # as ptac_cpu_pool_owns() has them
    found = ctypes.c_uint64.from_address(symbols()["ptac_cpu_range"]).value
    first, size = found >> size_bits, found & (1 << size_bits) - 1
    return first <= address // region < first + size


class _Slots(ctypes.Structure):
    """got_slots of csrc/bind/abi/got.h."""

    _fields_ = (
        ("n", ctypes.c_int),
        ("at", ctypes.c_void_p * 4),
        ("found", ctypes.c_size_t * 4),
    )


def pool_slots() -> tuple[list[int], list[int]]:
    """What libc10's imports of posix_memalign and free lead to now."""
    c10 = ctypes.c_void_p(function("ptac_torch_c10", ctypes.c_void_p)())
    taken = ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Slots)
    find = function("got_find", ctypes.c_bool, *taken)
    memalign, frees = _Slots(), _Slots()
    find(c10, b"posix_memalign", memalign)
    find(c10, b"free", frees)
    return list(memalign.found[: memalign.n]), list(frees.found[: frees.n])


def saved_least(n_bytes: int) -> int:
    """Have memory reuse look at tensors from this size on; what it was."""
    least = ctypes.c_int64.from_address(symbols()["ptac_saved_least_bytes"])
    before, least.value = least.value, n_bytes
    return before
