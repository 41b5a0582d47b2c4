"""Squeeze-and-excitation, which plans alone run as one operator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from pai_torchacc.bench.cases.case import Case, Planned

BLOCKS: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "few": (
        (1, 16, 8, 28),
        (1, 72, 24, 28),
        (1, 96, 4, 56),
        (16, 72, 24, 28),
        (16, 96, 4, 56),
    ),
    "many": (
        (1, 440, 110, 7),
        (1, 960, 240, 7),
        (1, 480, 120, 14),
        (1, 144, 6, 56),
        (16, 960, 240, 7),
        (16, 480, 120, 14),
        (16, 144, 6, 56),
    ),
}
"""Images, channels, channels between, and the width of an image."""

FORWARDED_TO = ("mean", "conv2d", "sigmoid")
"""Operators of ours that its parts come to."""


class _Block(nn.Module):
    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, hidden, 1)
        self.fc2 = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.fc1(x.mean((2, 3), keepdim=True)).relu()
        return x * self.fc2(gate).sigmoid()


def cases() -> Iterator[Case]:
    """Blocks as networks for images have them."""
    for kind, blocks in BLOCKS.items():
        for n, channels, hidden, width in blocks:
            make = partial(_call, n, channels, hidden, width)
            work = n * channels * width * width
            yield Case(
                *("squeeze_excite", kind, "float32", work),
                (make,),
                forwarded_to=FORWARDED_TO,
            )


def _call(n: int, channels: int, hidden: int, width: int) -> Planned:
    block = _Block(channels, hidden).eval()
    return Planned(block, torch.randn(n, channels, width, width))
