"""Lossless packing of the memory behind saved tensors.

Each form keeps a flat tensor's contents in fewer bytes and gives a fresh tensor of the
same bits. What it may be used for is decided by looking at the contents.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

WORD = 64
CHUNK = 4096
LEAST_ZEROS = 0.4
"""Of all elements, so that keeping the others apart pays."""

TWO_VALUES = 1
"""What ``pack_probe`` says of them."""


class Form(Protocol):
    """What stands for memory that was let go."""

    mechanism: str
    bytes: int
    """That it occupies itself."""

    def content(self) -> Tensor:
        """The memory anew, as a flat tensor."""


class _TwoValues:
    """At most two different elements: a mask, or the noise of a dropout."""

    def __init__(self, c: Any, flat: Tensor, values: tuple[int, int], bits: Tensor):
        self._c, self._values, self._bits = c, values, bits
        self._n, self._dtype = flat.numel(), flat.dtype
        self._width = flat.element_size()
        self.mechanism = "mask_bits" if flat.dtype is torch.bool else "noise_bits"
        self.bytes = bits.nbytes

    def content(self) -> Tensor:
        """See :class:`Form`."""
        flat = torch.empty(self._n, dtype=self._dtype, device="cpu")
        self._c.unpack_bitmask(
            self._bits.data_ptr(), *self._values, self._n, self._width, flat.data_ptr()
        )
        return flat


class _Nonzero:
    """Many zeros: a bit an element, and the others in their order."""

    mechanism = "zero_bits"

    def __init__(self, c: Any, n: int, starts: Tensor, bits: Tensor, values: Tensor):
        self._c, self._n = c, n
        self._starts, self._bits, self._values = starts, bits, values
        self.bytes = starts.nbytes + bits.nbytes + values.nbytes

    def content(self) -> Tensor:
        """See :class:`Form`."""
        flat = torch.empty(self._n, dtype=torch.float32, device="cpu")
        self._c.unpack_nonzero(
            self._bits.data_ptr(),
            self._values.data_ptr(),
            self._starts.data_ptr(),
            self._n,
            flat.data_ptr(),
        )
        return flat


class _Narrow:
    """Indices in the fewest bytes that hold all of them."""

    mechanism = "index_narrowing"

    def __init__(self, c: Any, n: int, width: int, narrow: Tensor):
        self._c, self._n, self._width, self._narrow = c, n, width, narrow
        self.bytes = narrow.nbytes

    def content(self) -> Tensor:
        """See :class:`Form`."""
        flat = torch.empty(self._n, dtype=torch.int64, device="cpu")
        self._c.unpack_indices(
            self._narrow.data_ptr(), self._n, self._width, flat.data_ptr()
        )
        return flat


def find(c: Any, flat: Tensor) -> Form | None:
    """A form for what lies in ``flat``, or None where none pays."""
    if flat.dtype is torch.int64:
        return _as_index_width(c, flat)
    if flat.dtype is torch.bool:
        return _as_bitmask(c, flat)
    promise = c.pack_probe(flat)
    form = _as_bitmask(c, flat) if promise == TWO_VALUES else None
    if form is None and promise and flat.dtype is torch.float32:
        form = _as_nonzero(c, flat)
    return form


def is_promising(c: Any, tensor: Tensor) -> bool:
    """Whether a look at the tensor's memory later on may find a form."""
    dtype = tensor.dtype
    return dtype is torch.int64 or dtype is torch.bool or c.pack_probe(tensor) > 0


def _bits(n: int) -> Tensor:
    return torch.empty((n + WORD - 1) // WORD, dtype=torch.int64, device="cpu")


def _as_bitmask(c: Any, flat: Tensor) -> Form | None:
    bits = _bits(flat.numel())
    values = c.pack_bitmask(
        flat.data_ptr(), flat.numel(), flat.element_size(), bits.data_ptr()
    )
    return None if values is None else _TwoValues(c, flat, values, bits)


def _as_nonzero(c: Any, flat: Tensor) -> Form | None:
    n = flat.numel()
    starts = torch.empty((n + CHUNK - 1) // CHUNK + 1, dtype=torch.int64, device="cpu")
    n_values = c.pack_count(flat.data_ptr(), n, starts.data_ptr())
    if n - n_values < LEAST_ZEROS * n:
        return None
    bits = _bits(n)
    values = torch.empty(n_values, dtype=torch.float32, device="cpu")
    packed = c.pack_nonzero(
        flat.data_ptr(), n, starts.data_ptr(), bits.data_ptr(), values.data_ptr()
    )
    return _Nonzero(c, n, starts, bits, values) if packed else None


_NARROW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _as_index_width(c: Any, flat: Tensor) -> Form | None:
    n = flat.numel()
    width = c.pack_index_width(flat.data_ptr(), n)
    if width not in _NARROW:
        return None
    narrow = torch.empty(n, dtype=_NARROW[width], device="cpu")
    c.pack_indices(flat.data_ptr(), n, width, narrow.data_ptr())
    return _Narrow(c, n, width, narrow)
