"""torchvision's transforms of images, for whole batches.

A transform is recognised by its type. What it does to values (ToTensor, Normalize) is
asked of torchvision once, for each of the 256 values that a byte has; what it does to
places, and which random numbers it draws for that, is done in C
(csrc/data/images.h).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc import _C
from pai_torchacc.data_pipeline.values import Column, Picture, Unproved

_MODULE = "torchvision.transforms.transforms"
_VALUES = ("ToTensor", "Normalize")
_PAD, _CROP, _RANDOM_CROP, _FLIP_X, _FLIP_Y = range(5)
_LEVELS = 256
_WITH_CHANNELS = 4
_MOST_TABLES = 64

_Move = tuple[int, tuple[int, int, int, int], float]


def recognised(function: Any) -> Transform | None:
    """The transform that an object of torchvision's is, or None."""
    vision = sys.modules.get(_MODULE)
    if vision is None or type(function).__module__ != _MODULE:
        return None
    steps = function.transforms if type(function) is vision.Compose else [function]
    if type(steps) not in (list, tuple) or not all(map(_is_plain, steps)):
        return None
    return Transform(list(steps))


def _is_plain(step: Any) -> bool:
    """An object of torchvision's whose call does what its class says."""
    cls = type(step)
    if cls.__module__ != _MODULE or not _are_torchvisions(cls):
        return False
    if any(name in vars(step) for name in _CALLED):
        return False
    if not isinstance(step, nn.Module):
        return True
    everywhere = nn.modules.module
    hooks = (
        *(step._forward_hooks, step._forward_pre_hooks),
        *(everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks),
    )
    return not any(hooks)


_CALLED = ("__call__", "forward", "get_params")
_FUNCTIONS = (
    *("to_tensor", "normalize", "pad", "crop", "center_crop", "hflip", "vflip"),
    "get_dimensions",
)


def _are_torchvisions(cls: type) -> bool:
    """Whether the class and the functions that it calls are as torchvision has them."""
    if vars(sys.modules[_MODULE]).get(cls.__name__) is not cls:
        return False
    found = [vars(cls)[name] for name in _CALLED if name in vars(cls)]
    functional = sys.modules["torchvision.transforms.functional"]
    found += [vars(functional).get(name) for name in _FUNCTIONS]
    return all(_module_of(f).startswith("torchvision.transforms") for f in found)


def _module_of(function: Any) -> str:
    function = getattr(function, "__func__", function)
    return str(getattr(function, "__globals__", {}).get("__name__", ""))


class Transform:
    """A sequence of transforms, each of torchvision's own."""

    def __init__(self, steps: list[Any]):
        self._steps = steps
        kinds = [type(step).__name__ for step in steps]
        self.signature = tuple(
            (kind, repr(sorted(_parameters(step).items())))
            for kind, step in zip(kinds, steps, strict=True)
        )
        self.draws = any(kind.startswith("Random") for kind in kinds)
        if kinds.count("ToTensor") != 1:
            raise Unproved("a transform of images without one ToTensor")
        self._n_before = kinds.index("ToTensor")

    def apply(self, value: Any) -> Column:
        """The batch of the images."""
        is_picture = isinstance(value, Picture)
        rows = value.rows if isinstance(value, Picture) else value
        if not isinstance(rows, Column) or rows.rows is None or rows.kind != "array":
            raise Unproved("a transform of something else than images")
        if not is_picture and self._n_before:
            raise Unproved("a transform of arrays")
        container, key = rows.rows
        channels = container.shape[3] if container.ndim == _WITH_CHANNELS else 1

        def make() -> Tensor:
            values, fill = self._tables(channels, is_picture)
            moves = self._moves(container.shape[1], container.shape[2])
            return _batch(container, key.indices(), moves, values, fill)

        signature = (*rows.signature, *self.signature)
        return Column("tensor", make, signature, rows.samples)

    def _tables(self, channels: int, is_picture: bool) -> tuple[Tensor, Tensor]:
        """What each byte becomes, and what padding is, by channel."""
        dtype = torch.get_default_dtype()
        key = (self.signature, channels, is_picture, dtype)
        if key not in _tables:
            if len(_tables) > _MOST_TABLES:
                _tables.clear()
            values = self._values(channels, is_picture)
            _tables[key] = values, self._fill(channels, values)
        return _tables[key]

    def _values(self, channels: int, is_picture: bool) -> Tensor:
        import numpy

        side = 16
        bytes_ = numpy.arange(_LEVELS, dtype=numpy.uint8).reshape(side, side)
        if channels > 1:
            bytes_ = numpy.repeat(bytes_[:, :, None], channels, axis=2)
        probe: Any = bytes_
        if is_picture:
            from PIL import Image

            probe = Image.fromarray(bytes_)
        for step in self._steps:
            if type(step).__name__ in _VALUES:
                probe = step(probe)
        if probe.dtype is not torch.float32 or probe.shape != (channels, side, side):
            raise Unproved("images of another dtype than float32")
        return probe.reshape(channels, _LEVELS).clone()

    def _fill(self, channels: int, values: Tensor) -> Tensor:
        """The value of a padded pixel, of the one step that pads."""
        padding = [i for i, s in enumerate(self._steps) if any(_padding(s))]
        if not padding:
            return torch.zeros(channels)
        if len(padding) > 1:
            raise Unproved("images are padded twice")
        step, is_before = self._steps[padding[0]], padding[0] < self._n_before
        if step.padding_mode != "constant":
            raise Unproved("images are not padded with a constant")
        if not is_before:
            return self._float_fill(step.fill, padding[0], channels)
        fills = (
            step.fill
            if isinstance(step.fill, (tuple, list))
            else [step.fill] * channels
        )
        if len(fills) != channels or any(
            type(f) is not int or not 0 <= f < _LEVELS for f in fills
        ):
            raise Unproved("images are padded with something else than bytes")
        return torch.stack([values[c, f] for c, f in enumerate(fills)])

    def _float_fill(self, fill: Any, at: int, channels: int) -> Tensor:
        if type(fill) not in (int, float):
            raise Unproved("images are padded with something else than a number")
        padded = torch.full((channels, 1, 1), float(fill), dtype=torch.float32)
        for step in self._steps[at:]:
            if type(step).__name__ in _VALUES:
                padded = step(padded)
        return padded.reshape(channels).clone()

    def _moves(self, height: int, width: int) -> list[_Move]:
        """What happens to places, for the extent that the images have."""
        moves: list[_Move] = []
        for step in self._steps:
            name = type(step).__name__
            if name in _VALUES:
                continue
            if name not in _MOVES:
                raise Unproved(f"the transform {name}")
            for move in _MOVES[name](step, height, width):
                moves.append(move)
                height, width = _extent(move, height, width)
        return moves


_tables: dict[Any, tuple[Tensor, Tensor]] = {}


def _parameters(step: Any) -> dict[str, Any]:
    """What a step was told, by name; all of it numbers and texts."""
    names = ("mean", "std", "inplace", "size", "padding", "pad_if_needed", "fill")
    found = {n: v for n, v in vars(step).items() if n in (*names, "padding_mode", "p")}
    for name, value in found.items():
        parts = value if type(value) in (list, tuple) else [value]
        if not all(type(v) in (int, float, bool, str, type(None)) for v in parts):
            raise Unproved(f"a transform whose {name} is no number")
    return found


def _extent(move: _Move, height: int, width: int) -> tuple[int, int]:
    kind, n, _ = move
    if kind == _PAD:
        return height + n[1] + n[3], width + n[0] + n[2]
    if kind == _CROP:
        return n[2], n[3]
    if kind == _RANDOM_CROP:
        return n[0], n[1]
    return height, width


def _padding(step: Any) -> tuple[int, int, int, int]:
    """Left, top, right and bottom."""
    given = getattr(step, "padding", None)
    sides = [0] if given is None else [given] if type(given) is int else list(given)
    if len(sides) not in (1, 2, 4) or any(type(s) is not int for s in sides):
        raise Unproved("an unusual padding")
    left, top, right, bottom = (sides * 4)[:4]
    return left, top, right, bottom


def _pad(step: Any, height: int, width: int) -> list[_Move]:
    return [(_PAD, _padding(step), 0.0)] if any(_padding(step)) else []


def _size(step: Any) -> tuple[int, int]:
    match tuple(step.size):
        case (int() as height, int() as width):
            return height, width
    raise Unproved("an unusual size of a crop")


def _random_crop(step: Any, height: int, width: int) -> list[_Move]:
    moves = _pad(step, height, width)
    for move in moves:
        height, width = _extent(move, height, width)
    wanted = _size(step)
    if height < wanted[0] or width < wanted[1]:
        raise Unproved("a crop that is larger than the image")
    return [*moves, (_RANDOM_CROP, (*wanted, 0, 0), 0.0)]


def _center_crop(step: Any, height: int, width: int) -> list[_Move]:
    wanted = _size(step)
    if height < wanted[0] or width < wanted[1]:
        raise Unproved("a crop that is larger than the image")
    top = round((height - wanted[0]) / 2.0)
    left = round((width - wanted[1]) / 2.0)
    return [(_CROP, (top, left, *wanted), 0.0)]


def _flip(kind: int) -> Callable[[Any, int, int], list[_Move]]:
    def moves(step: Any, height: int, width: int) -> list[_Move]:
        if type(step.p) not in (int, float):
            raise Unproved("a probability that is no number")
        return [(kind, (0, 0, 0, 0), step.p)]

    return moves


_MOVES: dict[str, Callable[[Any, int, int], Sequence[_Move]]] = {
    "Pad": _pad,
    "RandomCrop": _random_crop,
    "CenterCrop": _center_crop,
    "RandomHorizontalFlip": _flip(_FLIP_X),
    "RandomVerticalFlip": _flip(_FLIP_Y),
}


def _batch(
    container: Any, index: list[int], moves: list[_Move], values: Tensor, fill: Tensor
) -> Tensor:
    extent = _C.data_images_extent(container, moves)
    if extent is None:
        raise Unproved("images that are no dense arrays of bytes")
    if extent[2] > 0 and not draws_as_torch():
        raise Unproved("torch draws random numbers in another way than those known")
    generator = torch.default_generator
    made = _C.data_images(container, index, moves, values, fill, generator)
    if made is None:
        raise Unproved("an index that is no image")
    return made


@cache
def draws_as_torch() -> bool:
    """Whether numbers drawn in C, and the state that is left, are those of torch."""
    n, high = 1500, 1 << 20
    generator = torch.Generator().manual_seed(11)
    for _ in range(2):
        state = generator.get_state()
        drawn = torch.tensor(_C.data_draw(state, n)) % high
        theirs = torch.randint(0, high, (n,), generator=generator)
        if not torch.equal(drawn, theirs) or not torch.equal(
            state, generator.get_state()
        ):
            return False
    return True
