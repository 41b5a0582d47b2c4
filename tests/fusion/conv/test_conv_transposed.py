"""Transposed convolutions of stride 1, which are gradients of others."""

from __future__ import annotations

import contract
import convnets
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import nn

OPS = ("conv2d", "conv2d_backward")
ROWS = [
    row
    for row in switching.runnable_rows("conv2d")
    if row.startswith("winograd") and "4x4" not in row
]
SHAPES = [(2, 16, 24, 20, 17), (3, 64, 32, 8, 8), (6, 40, 9, 16, 17)]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("padding", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_contract(row: str, shape: convnets.Shape, padding: int) -> None:
    size = 5 if "5x5" in row else 3
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(convnets.case(shape, padding, padding != 1, size, True))
        assert hits[0].accelerated >= 1
        assert hits[1].accelerated >= 1


@pytest.mark.parametrize(
    "options",
    [
        {"stride": 2},
        {"stride": 2, "output_padding": 1},
        {"dilation": 2},
        {"groups": 2},
    ],
    ids=str,
)
def test_others_are_forwarded(options: dict[str, int]) -> None:
    x, layer = torch.randn(2, 16, 9, 9), nn.ConvTranspose2d(16, 16, 3, **options)
    stock = layer(x)
    with switching.accelerated(*OPS):
        hits = switching.hits("conv2d")
        ours = layer(x)
        assert hits.forwarded == {"shape": 1}
    contract.exactly(ours, stock)


@pytest.mark.parametrize(
    ("weight", "padding"), [((5, 4, 3, 3), 0), ((4, 4, 3, 3), 9), ((4, 4, 3, 3), -1)]
)
def test_complaints_are_torchs(weight: tuple[int, ...], padding: int) -> None:
    def complaint() -> str:
        with pytest.raises((RuntimeError, ValueError)) as caught:
            F.conv_transpose2d(
                torch.ones(1, 4, 9, 9), torch.ones(weight), padding=padding
            )
        return str(caught.value)

    stock = complaint()
    with switching.accelerated(*OPS):
        assert complaint() == stock
