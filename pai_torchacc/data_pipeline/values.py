"""Values of a whole batch: what a sample's code computes, for all samples at once.

A :class:`Column` stands for one value of each sample; its kind says what the value is
to the sample's code. :meth:`Column.collated` is the tensor that the default collate
function makes of the values.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _C

_WITH_ELEMENTS = 2
"""Dimensions of a table whose rows are more than numbers."""

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


class Effect(enum.Enum):
    """What a change of a column does to elements."""

    VALUES = enum.auto()
    """Each becomes what it would alone, wherever it is."""
    PLACES = enum.auto()
    """They stay what they are; dimensions change."""
    OTHER = enum.auto()


class Samples:
    """The samples of a batch, and what was computed for them.

    Another batch of the same code, data and types has the same columns: they are
    computed anew for the indices that are put here.
    """

    def __init__(self, index: list[int]):
        self.index = index
        self.columns: list[Column] = []

    def forget(self) -> None:
        """Nothing is computed yet; what was, belongs to who has it."""
        for column in self.columns:
            column.made = None


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
    samples : Samples
        What they are values of.
    rows : (object, Column), optional
        The container and the indices, where the values are rows as they are.
    changed : (Column, callable, Effect), optional
        What was changed, by what, and what that does to elements.

    Attributes
    ----------
    is_new : bool
        Whether the last batch had the values themselves, not a copy.
    """

    def __init__(
        self,
        kind: str,
        make: Callable[[], Any],
        signature: tuple[Any, ...],
        samples: Samples,
        rows: tuple[Any, Column] | None = None,
        changed: tuple[Column, Callable[[Any], Any], Effect] | None = None,
    ):
        self.kind, self.signature, self.rows = kind, signature, rows
        self.samples, self._make, self._changed = samples, make, changed
        self._is_followed = self.is_new = False
        self.made: Any = None
        samples.columns.append(self)

    def data(self) -> Any:
        """All values."""
        if self.made is None:
            if not self._is_followed:
                self._is_followed = True
                self._make = self._looked_up() or self._make
            self.made = self._make()
        return self.made

    def _looked_up(self) -> Callable[[], Any] | None:
        """What makes the values of bytes that are changed one by one: by a table.

        None where they are something else.
        """
        column, values, places = self, [], []
        while column._changed is not None:
            column, change, effect = column._changed
            if effect is Effect.OTHER:
                return None
            (values if effect is Effect.VALUES else places).append(change)
        if not values or column.rows is None:
            return None
        container, key = column.rows
        table = _table(container, values[::-1])
        if table is None:
            return None

        def make() -> Tensor:
            made = _C.data_look_up(container, key.indices(), table)
            if made is None:
                raise Unproved("rows with gaps, or an index that is no row")
            for change in reversed(places):
                made = change(made)
            return made

        return make

    def n_dims(self) -> int:
        """Dimensions of one value."""
        data = self.data()
        return data.ndim - 1 if isinstance(data, Tensor) else 0

    def then(
        self,
        kind: str,
        change: Callable[[Any], Any],
        *why: Any,
        effect: Effect = Effect.OTHER,
    ) -> Column:
        """The column that a change of all values gives."""
        signature, changed = (*self.signature, *why), (self, change, effect)
        return Column(
            kind,
            lambda: change(self.data()),
            signature,
            self.samples,
            changed=changed,
        )

    def numbers(self) -> list[Any]:
        """The values as Python's numbers."""
        if self.n_dims():
            raise Unproved("a number is made of more than one element")
        data = self.data()
        return data.tolist() if isinstance(data, Tensor) else data

    def indices(self) -> list[int]:
        """The values as indices of rows."""
        if self.data() is self.samples.index:
            return self.samples.index
        found = self.numbers()
        if set(map(type, found)) != {int}:
            raise Unproved("an index that is no integer")
        return found

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
        self.is_new = made is data
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


def rows_of(container: Any, key: Column) -> Column:
    """``container[i]`` for each i of a column."""
    signature = signature_of(container)
    kind = "tensor"
    if signature[0] in (list, tuple):
        return _of_list(container, key, signature)
    if signature[0] is not Tensor:
        kind = "array" if container.ndim > 1 else "scalar"

    def make() -> Tensor:
        return gathered(container, key.indices())

    return Column(kind, make, signature, key.samples, (container, key))


def signature_of(container: Any) -> tuple[Any, ...]:
    """What rows of a container are like."""
    if type(container) is Tensor or is_array(container):
        shape = container.shape[1:]
        return type(container), container.dtype, container.ndim, shape
    if type(container) in (list, tuple):
        return (type(container),)
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


def _table(container: Any, changes: list[Callable[[Any], Any]]) -> Tensor | None:
    """What each byte becomes; None where rows are no bytes, or that is no float32."""
    if container.dtype not in (torch.uint8, "uint8") or container.ndim < _WITH_ELEMENTS:
        return None
    import numpy

    values = torch.arange(256, dtype=torch.uint8)
    try:
        with numpy.errstate(all="raise"):  # numpy would warn where such bytes are
            for change in changes:
                values = change(values)
    except (ArithmeticError, Unproved):
        return None
    return values if values.dtype is torch.float32 else None


def _of_list(container: Any, key: Column, signature: tuple[Any, ...]) -> Column:
    def values() -> tuple[list[Any], set[type]]:
        try:
            found = [container[i] for i in key.indices()]
        except IndexError:
            raise Unproved("an index that is no row") from None
        return found, set(map(type, found))

    _, kinds = values()
    if kinds not in ({int}, {float}, {bool}):
        raise Unproved(f"a list of {', '.join(sorted(k.__name__ for k in kinds))}")

    def make() -> list[Any]:
        found, now = values()
        if now != kinds:
            raise Unproved("a list of numbers of several types")
        return found

    (kind,) = kinds
    return Column(kind.__name__, make, (*signature, kind), key.samples)
