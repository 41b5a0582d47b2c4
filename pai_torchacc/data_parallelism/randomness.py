"""Random numbers: alike on all ranks outside of divided calls, of their own inside."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_SPREAD = 0x9E3779B97F4A7C15
"""An odd number with its bits well mixed: the golden ratio's fraction."""


def _generators(device: torch.device) -> list[torch.Generator]:
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    return generators


@contextmanager
def of_rank(rank: int, device: torch.device) -> Iterator[None]:
    """Draw other numbers on each rank; afterwards all ranks draw the same again.

    Where the block draws none, the numbers after it are those that would have come
    without it.
    """
    generators = _generators(device)
    before = [g.get_state() for g in generators]
    # Drawn, and so another one each time: a sum over the state is the same for hundreds
    # of draws, which only move a place in it.
    seed = int(torch.randint(1 << 62, ())) + (rank + 1) * _SPREAD
    after = [g.get_state() for g in generators]
    for generator in generators:
        generator.manual_seed(seed & (1 << 63) - 1)
    began = [g.get_state() for g in generators]
    try:
        yield
    finally:
        ended = [g.get_state() for g in generators]
        has_drawn = not all(map(torch.equal, began, ended))
        for generator, state in zip(
            generators, after if has_drawn else before, strict=True
        ):
            generator.set_state(state)


@contextmanager
def left_alone() -> Iterator[None]:
    """Random numbers after the block are those that would have come without it."""
    numpy: Any = sys.modules.get("numpy")
    python = random.getstate()
    arrays = numpy.random.get_state() if numpy else None
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python)
        if numpy:
            numpy.random.set_state(arrays)


def state() -> bytes:
    """Where torch, ``random`` and NumPy are, as JSON."""
    numpy = sys.modules.get("numpy")
    arrays = numpy.random.get_state() if numpy else None
    has_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
    content = {
        "torch": torch.get_rng_state().tolist(),
        "cuda": torch.cuda.get_rng_state().tolist() if has_cuda else None,
        "random": random.getstate(),
        "numpy": [arrays[0], arrays[1].tolist(), *arrays[2:]] if arrays else None,
    }
    return json.dumps(content).encode()


def go_on_from(saved: bytes) -> None:
    """Draw what follows on such a :func:`state`, of another process."""
    numpy = sys.modules.get("numpy")
    content = json.loads(saved)
    torch.set_rng_state(torch.tensor(content["torch"], dtype=torch.uint8))
    if content["cuda"] and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(torch.tensor(content["cuda"], dtype=torch.uint8))
    version, numbers, gauss = content["random"]
    random.setstate((version, tuple(numbers), gauss))
    if numpy and content["numpy"]:
        numpy.random.set_state(tuple(content["numpy"]))


class Certain(TorchDispatchMode):
    """What is drawn is a constant, so that rows get the same in every division.

    Dropout then keeps everything, times a constant.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.native_dropout.default:
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        result = func(*args, **(kwargs or {}))
        if _draws(func) and isinstance(result, Tensor):
            result.fill_(0.5 if result.dtype.is_floating_point else 0)
        return result


_DRAWING = (
    "bernoulli", "binomial", "cauchy", "exponential", "geometric", "log_normal",
    "multinomial", "normal", "poisson", "rand", "uniform",
)  # fmt: skip


def _draws(func: Any) -> bool:
    name = func.overloadpacket.__name__
    return name.startswith(_DRAWING) and torch.Tag.nondeterministic_seeded in func.tags
