"""Lossless packing of the memory behind saved tensors.

Each form keeps a flat tensor's contents in fewer bytes and gives a fresh tensor of the
same bits. What it may be used for is decided by looking at the contents.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

WORD = 64
CHUNK = 4096
LEAST_ZEROS = 0.4
"""Of all elements, so that keeping the others apart pays."""

TWO_VALUES = 1
"""What ``pack_probe`` says of them."""


@dataclass(eq=False)
class Form:
    """What stands for memory that was let go."""

    mechanism: str
    bytes: int
    """That it occupies itself."""
    content: Callable[[], Tensor]
    """Gives the memory anew, as a flat tensor."""


def _packed(
    mechanism: str, flat: Tensor, parts: list[Tensor], unpack: Callable[[int], object]
) -> Form:
    """The form of these parts, which ``unpack`` turns into ``flat`` at an address."""
    n, dtype = flat.numel(), flat.dtype

    def content() -> Tensor:
        made = torch.empty(n, dtype=dtype, device="cpu")
        unpack(made.data_ptr())
        return made

    return Form(mechanism, sum(part.nbytes for part in parts), content)


def find(c: Any, flat: Tensor) -> Form | None:
    """A form for what lies in ``flat``, or None where none pays."""
    if flat.dtype is torch.int64:
        return _as_indices(c, flat)
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
    """At most two different elements: a mask, or the noise of a dropout."""
    n, width, bits = flat.numel(), flat.element_size(), _bits(flat.numel())
    values = c.pack_bitmask(flat.data_ptr(), n, width, bits.data_ptr())
    if values is None:
        return None
    mechanism = "mask_bits" if flat.dtype is torch.bool else "noise_bits"
    return _packed(
        mechanism,
        flat,
        [bits],
        lambda x: c.unpack_bitmask(bits.data_ptr(), *values, n, width, x),
    )


def _as_nonzero(c: Any, flat: Tensor) -> Form | None:
    """Many zeros: a bit an element, and the others in their order."""
    n = flat.numel()
    starts = torch.empty((n + CHUNK - 1) // CHUNK + 1, dtype=torch.int64, device="cpu")
    n_values = c.pack_count(flat.data_ptr(), n, starts.data_ptr())
    if n - n_values < LEAST_ZEROS * n:
        return None
    bits = _bits(n)
    values = torch.empty(n_values, dtype=torch.float32, device="cpu")
    at = [part.data_ptr() for part in (starts, bits, values)]
    if not c.pack_nonzero(flat.data_ptr(), n, *at):
        return None
    parts = [bits, values, starts]
    return _packed(
        "zero_bits",
        flat,
        parts,
        lambda x: c.unpack_nonzero(*(part.data_ptr() for part in parts), n, x),
    )


_NARROW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def _as_indices(c: Any, flat: Tensor) -> Form | None:
    """Indices in the fewest bytes that hold all of them."""
    n = flat.numel()
    width = c.pack_index_width(flat.data_ptr(), n)
    if width not in _NARROW:
        return None
    narrow = torch.empty(n, dtype=_NARROW[width], device="cpu")
    c.pack_indices(flat.data_ptr(), n, width, narrow.data_ptr())
    return _packed(
        "index_narrowing",
        flat,
        [narrow],
        lambda x: c.unpack_indices(narrow.data_ptr(), n, width, x),
    )
