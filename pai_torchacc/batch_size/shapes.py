"""Whether batches are as large as they are asked to be, as far as their parts show."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Shapes = list[list[int]]

_MOST = 16


def of(batch: Any) -> Shapes:
    """Shapes of arrays, lengths of lists, and integers that a batch is made of."""
    return list(islice(_shapes(batch), _MOST))


def _shapes(part: Any) -> Iterator[list[int]]:
    if isinstance(part, Mapping):
        part = tuple(part.values())
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        part = tuple(vars(part).values()) if hasattr(part, "__dict__") else ()
    if isinstance(part, (list, tuple)):
        yield [len(part)]
        for inner in part:
            yield from _shapes(inner)
    elif isinstance(part, int):
        yield [int(part)]
    elif (shape := _shape(part)) is not None:
        yield shape


def _shape(part: Any) -> list[int] | None:
    """Sizes that are no plain number, as a nested tensor's, are -1."""
    try:
        shape = part.shape
    except Exception:  # none, or a strided nested tensor, which refuses to say
        return None
    if not isinstance(shape, tuple):
        return None
    return [size if isinstance(size, int) else -1 for size in shape]


class Follower:
    """Watches that batches follow the sizes that were asked for."""

    def __init__(self) -> None:
        self._axes: set[tuple[int, int]] = set()
        self._seen: dict[int, Shapes] = {}

    def check(self, n: int, shapes: Shapes) -> None:
        """Raise ValueError where a batch does not follow ``n``.

        Either an axis that was ``n`` in all trials up to now is not, or nothing differs
        from a batch of another size. Batches of which nothing can be seen pass.
        """
        axes = {
            (i, axis)
            for i, shape in enumerate(shapes)
            for axis, size in enumerate(shape)
            if size == n
        }
        others = [other for other in self._seen if other != n]
        if others and self._axes and not self._axes & axes and len(self._seen) > 1:
            i, axis = min(self._axes)
            is_alike = i < len(shapes) and axis < len(shapes[i])
            size = shapes[i][axis] if is_alike else "other"
            raise ValueError(
                f"make_batch({n}) gave {size} samples; largest= ends the search "
                "before there are too few"
            )
        for other in others:
            if shapes and shapes == self._seen[other]:
                raise ValueError(
                    f"make_batch({n}) gave as many samples as make_batch({other}): it "
                    "has to give as many as it is asked for; largest= ends the search "
                    "before there are too few"
                )
        self._axes = self._axes & axes if self._seen else axes
        self._seen[n] = shapes
