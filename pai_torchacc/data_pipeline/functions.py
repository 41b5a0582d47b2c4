"""Functions that a sample's code may call, for whole batches.

Each gives for many samples what it gives for one: elements are computed one by one, in
the same dtype, or only moved.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.data_pipeline.methods import cast, integers, unsqueezed
from pai_torchacc.data_pipeline.values import (
    NUMBERS,
    Column,
    Effect,
    Known,
    Picture,
    Unproved,
    dtype_of,
    is_none,
)

_Options = dict[str, Any]
"""The arguments behind the first one, by name."""

_PICTURES = {"L": 3, "RGB": 4}
"""Dimensions of a table of PIL's images, by their mode."""


def call(function: Any, arguments: list[Any], named: _Options) -> Any:
    """``function(*arguments, **named)`` for the batch."""
    if function is _IS_TENSOR and len(arguments) == 1:
        return Known(_is_tensor(arguments[0]))
    first, *rest = arguments or [None]
    for known, second, compute in (*_KNOWN, *_loaded()):
        if function is known and isinstance(first, Column) and len(rest) <= 1:
            options = {**named, **dict.fromkeys((second,) * len(rest), *rest[:1])}
            if options.keys() <= {second}:
                return compute(first, options.get(second))
    name = getattr(function, "__name__", type(function).__name__)
    raise Unproved(f"a call of {name}")


def _loaded() -> Iterator[tuple[Any, str, Callable[[Column, Any], Any]]]:
    """Functions of modules that may be there, unless others have changed them."""
    for module, name, second, compute in (
        ("numpy", "array", "dtype", _array),
        ("numpy", "asarray", "dtype", _array),
        ("numpy", "expand_dims", "axis", _expanded),
        ("PIL.Image", "fromarray", "mode", _picture),
        ("torchvision.utils", "_Image_fromarray", "mode", _picture),
    ):
        function = getattr(sys.modules.get(module), name, None)
        is_own = isinstance(function, (BuiltinFunctionType, FunctionType)) or (
            type(function).__module__ == "numpy"  # of functions with a dispatcher
        )
        if is_own and getattr(function, "__module__", "") == module:
            yield function, second, compute


def _is_tensor(argument: Any) -> bool:
    if isinstance(argument, Column):
        return argument.kind == "tensor"
    return isinstance(argument, Known) and isinstance(argument.value, Tensor)


def _number(column: Column, base: Any, function: Callable[[Any], Any]) -> Column:
    if base is not None:
        raise Unproved("a number of another base")
    if column.kind == function.__name__:
        return column

    wanted = torch.int64 if function is int else torch.float64

    def convert(data: Any) -> Any:
        if (
            isinstance(data, Tensor)
            and data.ndim == 1
            and data.dtype in _EXACT[function]
        ):
            return data if data.dtype is wanted else data.to(wanted)
        return [function(v) for v in column.numbers()]

    return column.then(function.__name__, convert, function)


_EXACT: dict[Any, tuple[torch.dtype, ...]] = {
    int: (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
    float: (torch.float64, torch.float32),
}
"""Dtypes whose values are Python's numbers of that kind, each of them."""


def _new_tensor(column: Column, dtype: Any) -> Column:
    if column.kind == "tensor":
        raise Unproved("torch.tensor() of a tensor, which warns")
    return _tensor(column, dtype)


def _tensor(column: Column, dtype: Any) -> Column:
    wanted = None if dtype is None or is_none(dtype) else dtype_of(dtype)

    def convert(data: Any) -> Any:
        is_number = column.kind in (*NUMBERS, "scalar")
        if not isinstance(data, Tensor):
            return torch.tensor(data, dtype=wanted)
        if is_number and not _keeps(data.dtype, wanted):
            return torch.tensor(column.numbers(), dtype=wanted)  # raises as it does
        return data if wanted is None else data.to(wanted)

    if wanted is None:
        # A float becomes torch's default dtype; all else keeps its own.
        wanted = torch.get_default_dtype() if column.kind == "float" else None
    return column.then("tensor", convert, wanted, effect=Effect.VALUES)


def _keeps(dtype: torch.dtype, wanted: torch.dtype | None) -> bool:
    """Whether numbers of a dtype become another one alike, alone and many at once."""
    if wanted in (None, dtype) or (wanted is torch.int64 and dtype in _EXACT[int]):
        return True
    return dtype in _EXACT[float] and wanted in _EXACT[float]


def _from_numpy(column: Column, _: Any) -> Column:
    if column.kind != "array":
        raise Unproved("torch.from_numpy() of something else than an array")
    return column.then("tensor", lambda data: data, effect=Effect.VALUES)


def _float_tensor(column: Column) -> Column:
    if column.kind != "array":
        raise Unproved("a tensor of something else than an array")
    return _tensor(column, Known(torch.float32))


def _array(column: Column, dtype: Any) -> Column:
    if column.kind != "array":
        raise Unproved("an array of something else than an array")
    if dtype is None:
        return column.then("array", lambda data: data, effect=Effect.VALUES)
    return cast(column, dtype)


def _expanded(column: Column, axis: Any) -> Column:
    dims = integers([axis])
    if column.kind != "array" or dims is None:
        raise Unproved("an axis that is no integer")
    return column.then(
        "array", lambda data: unsqueezed(data, dims), dims, effect=Effect.PLACES
    )


def _picture(column: Column, mode: Any) -> Picture:
    asked = mode.value if isinstance(mode, Known) else None
    container = column.rows[0] if column.rows else None
    found = [m for m, n in _PICTURES.items() if n == getattr(container, "ndim", 0)]
    is_bytes = column.kind == "array" and column.signature[1] in (torch.uint8, "uint8")
    if not is_bytes or not found or (mode is not None and asked not in (None, *found)):
        raise Unproved("an image of something else than bytes")
    if found == ["RGB"] and container.shape[-1] != len("RGB"):
        raise Unproved("an image of other channels than red, green and blue")
    return Picture(column)


_IS_TENSOR = torch.is_tensor
_KNOWN: tuple[tuple[Any, str, Callable[[Column, Any], Any]], ...] = (
    (int, "base", lambda column, base: _number(column, base, int)),
    (float, "", lambda column, _: _number(column, None, float)),
    (torch.tensor, "dtype", _new_tensor),
    (torch.as_tensor, "dtype", _tensor),
    (torch.from_numpy, "", _from_numpy),
    (torch.Tensor, "", lambda column, _: _float_tensor(column)),
    (torch.FloatTensor, "", lambda column, _: _float_tensor(column)),
)
"""Functions as they were when this module was imported, the name of their second
argument, and what they are for a batch."""
