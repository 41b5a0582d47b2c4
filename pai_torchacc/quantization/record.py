"""What is remembered of a quantized layer: in checkpoints, and in memory.

A :class:`Record` goes into checkpoints, as JSON text in a uint8 tensor: a reloaded
model computes as the saved one did. A :class:`State` is the layer's own.
"""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pai_torchacc.quantization.quantizer import (
    FORMATS,
    INT8,
    Format,
    is_in_graph,
    sqnr_db,
    version_of,
)

VERSION = 1
METHODS = ("auto", *FORMATS, "weight_only")


class Rows(NamedTuple):
    """Calls of a linear layer with so many rows, the bounds included."""

    least: float
    most: float
    typical: int
    said: str
    device: str = "cpu"


ROWS = {
    "m1": Rows(0, 1, 1, "1 row"),
    "m2_7": Rows(2, 7, 4, "2 to 7 rows"),
    "m8_31": Rows(8, 31, 16, "8 to 31 rows"),
    "m32_up": Rows(32, math.inf, 64, "32 rows"),
    "cuda_few": Rows(0, 255, 16, "fewer than 256 rows", "cuda"),
    "cuda_m256": Rows(256, 1023, 512, "256 rows", "cuda"),
    "cuda_m1024": Rows(1024, math.inf, 4096, "1024 rows", "cuda"),
}
"""Kinds of call of a linear layer. A layer that was decided on one device is
quantized for all calls on the other. Those of fp8 are CUDA's."""


def kinds_on(device: str) -> tuple[str, ...]:
    """Kinds of call of linear layers there."""
    return tuple(kind for kind, rows in ROWS.items() if rows.device == device)


MOST_BYTES = 1 << 16
"""Of a record in a checkpoint."""

_MOST_BUCKETS = 64


@dataclass(frozen=True)
class Record:
    """How a layer is computed, by kind of call.

    ``buckets`` says for each kind of call (``m1`` is one row) whether it is computed in
    the format, by its name, or by the dequantized weight.
    """

    method: str
    buckets: tuple[tuple[str, str], ...]
    format: Format = INT8

    def as_tensor(self) -> Tensor:
        """Encode as JSON text for a checkpoint."""
        content = {
            "version": VERSION,
            "method": self.method,
            "weight_bits": 8,
            "dtype": self.format.name,
            "activation_bits": {"one row": 16 if self.format == INT8 else 8, "else": 8},
            "buckets": dict(self.buckets),
        }
        text = list(json.dumps(content).encode())
        return torch.tensor(text, dtype=torch.uint8, device="cpu")


def from_tensor(tensor: Any, of: Format = INT8) -> Record:
    """Decode what :meth:`Record.as_tensor` gave of a format; else ValueError."""
    if not isinstance(tensor, Tensor) or tensor.dtype != torch.uint8:
        raise ValueError("the record of quantization is no uint8 tensor")
    if tensor.dim() != 1 or tensor.numel() > MOST_BYTES or tensor.is_meta:
        raise ValueError("the record of quantization has a wrong size")
    try:
        content = json.loads(bytes(tensor.tolist()).decode())
        if not isinstance(content, dict) or content.get("version") != VERSION:
            raise ValueError(f"it is not of version {VERSION}")
        method, buckets = content.get("method"), content.get("buckets")
        if method not in METHODS:
            raise ValueError(f"its method is not one of {', '.join(METHODS)}")
        if not isinstance(buckets, dict) or len(buckets) > _MOST_BUCKETS:
            raise ValueError("its buckets are missing")
        if (dtype := content.get("dtype", INT8.name)) != of.name:
            raise ValueError(f"it is of {dtype!r}, and the weight of {of.name}")
        if not all(how in (of.name, "float") for how in buckets.values()):
            raise ValueError(f"its buckets are not among {of.name}, float")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the record of quantization is damaged: {error}") from None
    return Record(method, tuple(buckets.items()), of)


class Tie:
    """Modules with one weight: what is made of it for one is made for all.

    Tied modules have the same tensors. Moving, packing and unpacking give a tensor for
    each module in turn; from the second module on it is the one that the first got.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[Any, Any, tuple[int, int], Any]] = {}
        self.members: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def once(
        self, what: str, source: Tensor, make: Callable[[], Tensor], by: Any = None
    ) -> Tensor:
        """Give what ``make`` gives of ``source``, or has given another module.

        ``by`` is who asks: what was made for somebody else is not given.
        """
        if what in self._made:
            of, held, versions, who = self._made[what]
            result = held()
            is_same = of() is source and result is not None and who is by
            if is_same and versions == (version_of(source), version_of(result)):
                return result
        result = make()
        versions = version_of(source), version_of(result)
        self._made[what] = weakref.ref(source), weakref.ref(result), versions, by
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]

    def __deepcopy__(self, memo: dict[int, Any]) -> Tie:
        return Tie()


@dataclass
class State:
    """What a quantized module keeps beside its tensors."""

    record: Record
    shape: tuple[int, ...]
    groups: int = 1
    requires_grad: bool = True
    dtype: torch.dtype = torch.float32
    """What ``.to()`` and the like would have made of the float weight."""
    order: tuple[str, ...] = ()
    """Names of the parameters, in their order before."""
    tie: Tie | None = None
    keeps_plain: bool = False
    """Whether plain rows are kept beside packed ones, as another module has them."""
    master: nn.Parameter | None = None
    signal: float = 0.0
    noise: float = 0.0
    output_sqnr: float | None = None
    measured: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By kind of call: seconds in float and quantized."""
    floats: frozenset[str] = frozenset()
    """Kinds of call that are computed in float32."""
    float_rows: tuple[Rows, ...] = ()
    """The same of a linear layer."""
    geometry: tuple[Any, Any] | None = None
    """A convolution's settings, and what they mean to kernels."""

    def take(self, record: Record) -> None:
        """Compute as this record says from now on."""
        self.record = record
        self.floats = frozenset(kind for kind, how in record.buckets if how == "float")
        self.float_rows = tuple(ROWS[kind] for kind in self.floats if kind in ROWS)

    def parameter(self, weight: Tensor) -> nn.Parameter:
        """Make the parameter that the layer would have if it were float."""
        return nn.Parameter(weight.to(self.dtype), requires_grad=self.requires_grad)

    def weight_sqnr(self) -> float:
        """Of the weight, in dB."""
        return sqnr_db(self.signal, self.noise)

    def is_float(self, x: Tensor, k: int) -> bool:
        """Whether a linear layer computes these rows of ``k`` in float.

        A graph serves any number of rows: it is quantized where some numbers are.
        """
        if is_in_graph():
            return len(self.floats) == len(self.record.buckets)
        rows, device = x.numel() // k, x.device.type
        return any(
            kind.least <= rows <= kind.most and kind.device == device
            for kind in self.float_rows
        )

    def is_float_on(self, device: str) -> bool:
        """Whether a float copy of the weight is of use there."""
        known = {kind for kind in self.floats if kind in ROWS}
        return len(known) < len(self.floats) or any(
            ROWS[kind].device == device for kind in known
        )
