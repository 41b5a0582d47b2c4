"""Values of a whole batch: what a sample's code computes, for all samples at once.

A :class:`Column` stands for one value of each sample; its kind says what the value is
to the sample's code. :meth:`Column.collated` is the tensor that the default collate
function makes of the values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _C

NUMBERS = ("int", "float", "bool")
"""Kinds of columns that are numbers of Python."""


class Unproved(Exception):  # no error: stock does it
    """What a sample's code does is not known for certain; the text says what."""


@dataclass(frozen=True, eq=False)
class Known:
    """A value that is the same for all samples."""

    value: Any


@dataclass(frozen=True, eq=False)
class Group:
    """A tuple, list or dictionary of values; keys are those of a dictionary."""

    kind: type
    parts: list[Any]
    keys: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Picture:
    """Images as PIL's: rows of an array of bytes, with or without channels."""

    rows: Column


class Column:
    """One value of each sample.

    Parameters
    ----------
    kind : {"tensor", "array", "scalar", "int", "float", "bool"}
        A torch.Tensor; a numpy.ndarray; a numpy scalar; a number of Python.
    make : callable
        Returns all values: a tensor whose first dimension is the samples, or a list of
        numbers. Called once, when they are needed.
    signature : tuple
        What the values rest on besides the code: types, dtypes, dimensions.
    rows : (object, list of int), optional
        The container and indices, where the values are rows as they are.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[], Any],
        signature: tuple[Any, ...],
        rows: tuple[Any, list[int]] | None = None,
    ):
        self.kind, self.signature, self.rows = kind, signature, rows
        self._make = make
        self._made: Any = None

    def data(self) -> Any:
        """All values."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def n_dims(self) -> int:
        """Dimensions of one value."""
        data = self.data()
        return data.ndim - 1 if isinstance(data, Tensor) else 0

    def then(self, kind: str, change: Callable[[Any], Any], *why: Any) -> Column:
        """The column that a change of all values gives."""
        return Column(kind, lambda: change(self.data()), (*self.signature, *why))

    def numbers(self) -> list[Any]:
        """The values as Python's numbers."""
        if self.n_dims():
            raise Unproved("a number is made of more than one element")
        data = self.data()
        return data.tolist() if isinstance(data, Tensor) else data

    def collated(self, given: set[int]) -> Tensor:
        """The batch: a tensor of its own, contiguous.

        ``given`` are the storages that the batch has given out, which nothing else may
        share: a sample's values do not either once they are stacked.
        """
        data = self.data()
        if not isinstance(data, Tensor):
            dtype = torch.float64 if self.kind == "float" else None
            return torch.tensor(data, dtype=dtype)
        made = data.contiguous()  # as torch.stack() makes it of any samples
        storage = made.untyped_storage().data_ptr()
        if storage in given or (1 in made.shape and not _is_canonical(made)):
            made = made.clone(memory_format=torch.contiguous_format)
            storage = made.untyped_storage().data_ptr()
        given.add(storage)
        return made


def _is_canonical(tensor: Tensor) -> bool:
    """Whether strides are a new tensor's, also of dimensions that have one element."""
    expected = 1
    for size, stride in zip(
        reversed(tensor.shape), reversed(tensor.stride()), strict=True
    ):
        if stride != expected:
            return False
        expected *= size
    return True


def is_none(value: Any) -> bool:
    """Whether a value is known to be None."""
    return isinstance(value, Known) and value.value is None


def dtype_of(given: Any) -> torch.dtype:
    """The dtype of torch that a value is known to be."""
    value = given.value if isinstance(given, Known) else None
    if isinstance(value, torch.dtype):
        return value
    raise Unproved("a dtype that is none of torch's")


def rows_of(container: Any, index: list[int]) -> Column:
    """``container[i]`` for each i of a batch."""
    rows = container, index
    if type(container) is Tensor:
        signature = (Tensor, container.dtype, container.ndim, container.shape[1:])
        return Column("tensor", lambda: gathered(*rows), signature, rows)
    if is_array(container):
        kind = "array" if container.ndim > 1 else "scalar"
        signature = (
            *(type(container), container.dtype, container.ndim),
            container.shape[1:],
        )
        return Column(kind, lambda: gathered(*rows), signature, rows)
    if type(container) in (list, tuple):
        return _of_list(container, index)
    raise Unproved(f"samples are kept in a {type(container).__name__}")


def is_array(container: Any) -> bool:
    """Whether this is a numpy array, or one that a file is mapped to."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(container) in (numpy.ndarray, numpy.memmap)


def gathered(container: Any, index: list[int]) -> Tensor:
    """The rows as one tensor."""
    found = _C.data_rows((container,), index)
    if found is None:
        raise Unproved("rows with gaps, an unusual dtype, or an index that is no row")
    return found[0]


def _of_list(container: Any, index: list[int]) -> Column:
    try:
        values = [container[i] for i in index]
    except IndexError:
        raise Unproved("an index that is no row") from None
    kinds = set(map(type, values))
    for kind in (int, float, bool):
        if kinds == {kind}:
            return Column(kind.__name__, lambda: values, (list, kind))
    raise Unproved(f"a list of {', '.join(sorted(k.__name__ for k in kinds))}")
