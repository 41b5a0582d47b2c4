"""Methods of a sample's values, and arithmetic with them, for whole batches."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pai_torchacc.data_pipeline.values import (
    Column,
    Effect,
    Known,
    Unproved,
    dtype_of,
    is_none,
)


def cast(column: Column, dtype: Any) -> Column:
    """An array's ``astype``."""
    import numpy

    value = dtype.value if isinstance(dtype, Known) else None
    try:
        wanted = numpy.dtype(value)
    except TypeError:
        raise Unproved("a dtype that is none of numpy's") from None
    if value is None or wanted.kind not in "fiub" or not wanted.isnative:
        raise Unproved("a dtype that is not of numbers")

    def convert(data: Any) -> Any:
        array = data.numpy()
        if array.dtype.kind == "f" and wanted.kind in "iu" and wanted.name != "int64":
            # What does not fit is one thing in a vector, and another alone.
            raise Unproved("floats that become short integers")
        return torch.from_numpy(array.astype(wanted))

    return column.then(column.kind, convert, wanted, effect=Effect.VALUES)


def arithmetic(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """``left + right`` and the like, for values or numbers."""
    if isinstance(left, Known) and isinstance(right, Known):
        if all(type(v.value) in (int, float) for v in (left, right)):
            return Known(operate(left.value, right.value))
        raise Unproved("arithmetic of objects")
    is_left = isinstance(left, Column)
    column, other = (left, right) if is_left else (right, left)
    if not isinstance(column, Column) or not isinstance(other, Known):
        raise Unproved("arithmetic between a sample's values")
    number = other.value
    if type(number) not in (int, float):
        raise Unproved("arithmetic with something else than a number")

    def one(data: Any) -> Any:
        return operate(data, number) if is_left else operate(number, data)

    is_division = operate is operator.truediv and is_left
    if math.isnan(number) or (is_division and not number):
        raise Unproved("arithmetic that numpy warns of, or that makes NaNs")
    why = operate.__name__, type(number)
    if column.kind == "tensor" and column.signature[1] not in _SHORT:
        return column.then("tensor", one, *why, effect=Effect.VALUES)
    if column.kind == "array":
        return column.then(
            "array",
            lambda d: torch.from_numpy(one(d.numpy())),
            *why,
            effect=Effect.VALUES,
        )
    raise Unproved(f"arithmetic with a {column.kind}")


_SHORT = (torch.float16, torch.bfloat16)
"""Dtypes whose NaNs get other bits alone than in a vector."""


def item(column: Column, key: Any) -> Column:
    """``column[None]``, a new dimension before the sample's."""
    if not is_none(key) or column.kind not in ("tensor", "array"):
        raise Unproved("a part of a sample's value")
    return column.then(
        column.kind, lambda data: data.unsqueeze(1), effect=Effect.PLACES
    )


def method(
    column: Column, name: str, arguments: list[Any], named: dict[str, Any]
) -> Column:
    """``column.name(*arguments, **named)``."""
    found = None
    if not named and column.kind == "tensor":
        found = _of_tensor(column, name, arguments)
    elif not named and column.kind in ("array", "scalar"):
        found = _of_array(column, name, arguments)
    if found is None:
        raise Unproved(f"the method {name} of a sample's {column.kind}")
    return found


def _of_tensor(column: Column, name: str, arguments: list[Any]) -> Column | None:
    numbers = integers(arguments)
    if name in _SHAPES and numbers is not None:
        return column.then(
            "tensor",
            lambda data: _SHAPES[name](data, numbers),
            numbers,
            effect=Effect.PLACES,
        )
    if name == "to" and len(arguments) == 1:
        dtype = dtype_of(arguments[0])
        return column.then(
            "tensor", lambda data: data.to(dtype), dtype, effect=Effect.VALUES
        )
    if arguments:
        return None
    if name in _CASTS:
        return column.then(
            "tensor", lambda data: data.to(_CASTS[name]), name, effect=Effect.VALUES
        )
    if name in ("contiguous", "clone"):
        return column.then("tensor", lambda data: data.contiguous())
    if name == "numpy" and column.rows:
        signature = (*column.signature, name)
        return Column("array", column.data, signature, column.samples, column.rows)
    return _item(column) if name == "item" else None


def _of_array(column: Column, name: str, arguments: list[Any]) -> Column | None:
    numbers = integers(arguments)
    if name == "astype" and len(arguments) == 1:
        return cast(column, arguments[0])
    if name == "reshape" and column.kind == "array" and numbers is not None:
        return column.then(
            "array",
            lambda data: _view(data, numbers),
            numbers,
            effect=Effect.PLACES,
        )
    if name == "copy" and not arguments:
        return column.then(column.kind, lambda data: data, effect=Effect.VALUES)
    is_item = name == "item" and column.kind == "scalar" and not arguments
    return _item(column) if is_item else None


_CASTS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "long": torch.int64,
    "int": torch.int32,
    "bool": torch.bool,
}


def unsqueezed(data: Tensor, dims: tuple[int, ...]) -> Tensor:
    """With a dimension of one more, which ``dims`` names among a sample's."""
    (dim,) = dims
    return data.unsqueeze(dim + 1 if dim >= 0 else dim)


def _view(data: Tensor, sizes: tuple[int, ...]) -> Tensor:
    return data.reshape(len(data), *sizes)


def _permute(data: Tensor, dims: tuple[int, ...]) -> Tensor:
    n_dims = data.ndim - 1
    if sorted(d % n_dims for d in dims) != list(range(n_dims)):
        raise Unproved("a permutation that is none")
    return data.permute(0, *(d % n_dims + 1 for d in dims))


_SHAPES: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "unsqueeze": unsqueezed,
    "view": _view,
    "reshape": _view,
    "permute": _permute,
}


def integers(arguments: list[Any]) -> tuple[int, ...] | None:
    """Arguments that are all known to be integers; None where they are not."""
    values = [a.value if isinstance(a, Known) else None for a in arguments]
    return tuple(values) if values and all(type(v) is int for v in values) else None


def _item(column: Column) -> Column:
    kinds = set(map(type, column.numbers()))
    if len(kinds) != 1:
        raise Unproved("items of several types")

    def convert(_: Any) -> list[Any]:
        found = column.numbers()
        if set(map(type, found)) != kinds:
            raise Unproved("items of several types")
        return found

    (kind,) = kinds
    return column.then(kind.__name__, convert)
