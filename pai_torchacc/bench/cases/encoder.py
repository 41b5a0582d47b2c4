"""Torch's self-attention and encoder layers in inference."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from pai_torchacc.bench.cases.case import Call, Case


class Sizes(NamedTuple):
    """Sequences of a batch, positions, numbers at each of them, and heads."""

    batch: int
    length: int
    width: int
    heads: int

    @property
    def work(self) -> tuple[int, int, int]:
        """As the table tells them: rows of the products, positions, width."""
        return self.batch * self.length, self.length, self.width


SIZES = [
    Sizes(batch, length, width, heads)
    for width, heads, sequences in (
        (64, 4, ((1, 16), (8, 16), (1, 128), (8, 128))),
        (256, 4, ((1, 16), (8, 16), (1, 128), (8, 128), (1, 512))),
        (768, 12, ((1, 16), (8, 16), (1, 128), (1, 512))),
    )
    for batch, length in sequences
]

USUAL = 4
"""Times the width, the hidden layer of most models."""

WIDE = 2048
"""The hidden layer by torch's default."""


def cases() -> Iterator[Case]:
    """Cases of both operators."""
    for sizes in SIZES:
        make = (partial(_attention, sizes),)
        yield Case("multi_head_attention", "self", "float32", sizes.work, make)
        make = (partial(_layer, sizes, USUAL * sizes.width),)
        yield Case("encoder_layer", "layer", "float32", sizes.work, make)
        if sizes.width * 2 * USUAL < WIDE:
            make = (partial(_layer, sizes, WIDE),)
            yield Case("encoder_layer", "wide_layer", "float32", sizes.work, make)


def _attention(sizes: Sizes) -> Call:
    module = nn.MultiheadAttention(sizes.width, sizes.heads, batch_first=True)
    module.eval().requires_grad_(False)
    x = torch.randn(sizes[:3])
    return lambda: module(x, x, x, need_weights=False)


def _layer(sizes: Sizes, hidden: int) -> Call:
    layer = nn.TransformerEncoderLayer(
        sizes.width, sizes.heads, hidden, batch_first=True
    )
    layer.eval().requires_grad_(False)
    x = torch.randn(sizes[:3])
    return lambda: layer(x)
