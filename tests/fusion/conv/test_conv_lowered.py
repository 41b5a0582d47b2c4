"""Convolutions of few places, as products of their weights and of columns."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from toggling import hold_in_threads
from torch import Tensor, nn

from pai_torchacc import _C

ROWS = [row for row in switching.runnable_rows("conv2d") if row.startswith("lowered")]

OF_BATCHES = [row for row in ROWS if "batch" in row]
OF_ONE = [row for row in ROWS if row not in OF_BATCHES]

Geometry = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

CASES: dict[str, Geometry] = {
    "1x1": ((1, 64, 7, 7), (96, 64, 1, 1), {}),
    "1x1, padded": ((1, 24, 7, 7), (40, 24, 1, 1), {"padding": 1}),
    "1x1 strided": ((2, 48, 14, 14), (40, 48, 1, 1), {"stride": 2}),
    "3x3": ((1, 32, 7, 7), (48, 32, 3, 3), {"padding": 1}),
    "3x3 of a pixel": ((1, 32, 1, 1), (48, 32, 3, 3), {"padding": 1}),
    "3x3, long": ((1, 300, 7, 7), (34, 300, 3, 3), {"padding": 1}),
    "3x3 strided": ((2, 24, 14, 14), (20, 24, 3, 3), {"stride": 2, "padding": 1}),
    "5x5 of two images": ((2, 16, 9, 9), (20, 16, 5, 5), {"padding": 2}),
    "same size, shifted": ((1, 8, 6, 6), (8, 8, 5, 5), {"padding": (3, 2)}),
    "stem": ((1, 3, 33, 33), (20, 3, 7, 7), {"stride": 2, "padding": 3}),
    "patches": ((2, 3, 32, 32), (24, 3, 8, 8), {"stride": 8}),
    "dilated": ((2, 12, 10, 10), (24, 12, 3, 3), {"padding": 2, "dilation": 2}),
    "dilated beyond": ((1, 12, 5, 5), (24, 12, 3, 3), {"padding": 9, "dilation": 9}),
    "grouped": ((2, 48, 7, 7), (48, 8, 3, 3), {"padding": 1, "groups": 6}),
    "lopsided": ((2, 9, 7, 19), (13, 9, 1, 7), {"padding": (0, 3), "stride": (2, 1)}),
    "much padding": ((1, 8, 5, 5), (8, 8, 2, 2), {"padding": 4, "stride": 3}),
    "small images": ((5, 24, 4, 4), (44, 24, 3, 3), {"padding": 1}),
    "small groups": ((3, 24, 5, 5), (36, 8, 3, 3), {"padding": 1, "groups": 3}),
    "small, odd": ((3, 24, 6, 6), (21, 24, 3, 3), {"padding": 1}),
    "points": ((3, 40, 1, 1), (20, 40, 1, 1), {}),
    "few rows": ((1, 12, 9, 9), (3, 12, 3, 3), {}),
    "long rows": ((1, 700, 7, 7), (24, 700, 3, 3), {"padding": 1}),
    "signal": ((2, 24, 100), (40, 24, 3), {"padding": 1}),
    "volume": ((1, 8, 4, 6, 6), (12, 8, 3, 3, 3), {"padding": 1}),
    "volume, strided": ((1, 8, 5, 7, 7), (12, 8, 3, 2, 2), {"stride": 2, "padding": 1}),
}  # fmt: skip


def convolution(x: Tensor) -> Any:
    return (F.conv1d, F.conv2d, F.conv3d)[x.dim() - 3]


def drawn(name: str, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    sizes, weight, _ = CASES[name]
    scale = 1 / math.sqrt(math.prod(weight[1:]))
    return (
        contract.draw(*sizes, dtype=dtype),
        contract.draw(*weight, dtype=dtype, scale=scale),
        contract.draw(weight[0], dtype=dtype),
    )


def laid_out(*tensors: Tensor, last: bool) -> list[Tensor]:
    """As they are, or in channels_last."""
    layout = torch.channels_last if last else torch.contiguous_format
    return [t.to(memory_format=layout) if t.dim() == 4 else t for t in tensors]


LAYOUTS = [(name, last) for name in CASES for last in (False, True)
           if not last or len(CASES[name][0]) == 4]  # fmt: skip


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("name", "last"), LAYOUTS)
def test_contract(name: str, last: bool, row: str) -> None:
    def run(dtype: torch.dtype) -> dict[str, Tensor]:
        x, w, b = laid_out(*drawn(name, dtype), last=last)
        conv = convolution(x)
        options = CASES[name][2]
        return {"y": conv(x, w, b, **options), "plain": conv(x, w, **options)}

    with switching.accelerated("conv2d", row=row):
        hits = switching.hits("conv2d")
        contract.hold(run)
        assert {*hits.forwarded} <= {"dtype", "disabled in this thread"}
        assert hits.accelerated > 0


@pytest.mark.parametrize("n_threads", [1, 2, 3])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "name",
    ["1x1 strided", "5x5 of two images", "grouped", "small images", "small groups"],
)
def test_threads_and_other_images_change_no_bits(
    name: str, last: bool, row: str, n_threads: int
) -> None:
    x, w, b = laid_out(*drawn(name), last=last)
    before = torch.get_num_threads()
    with switching.accelerated("conv2d", row=row):
        hits = switching.hits("conv2d")
        alone = torch.cat([F.conv2d(x1, w, b, **CASES[name][2]) for x1 in x.split(1)])
        try:
            torch.set_num_threads(n_threads)
            together = F.conv2d(x, w, b, **CASES[name][2])
        finally:
            torch.set_num_threads(before)
        assert hits.accelerated == len(x) + 1
    assert torch.equal(alone, together)


@pytest.mark.parametrize("row", ROWS)
def test_what_it_is_not_for(row: str) -> None:
    w = torch.randn(8, 8, 3, 3)
    calls = {
        "shape": torch.randn(1, 8, 250, 250),  # more columns than are made
        "layout": torch.randn(1, 8, 6, 12)[..., ::2],
    }
    for reason, x in calls.items():
        with switching.accelerated("conv2d", row=row):
            hits = switching.hits("conv2d")
            y = F.conv2d(x, w, padding=1)
            assert hits.forwarded == {reason: 1}
        assert torch.equal(y, F.conv2d(x, w, padding=1))
    plain, last = torch.randn(1, 8, 6, 6), {"memory_format": torch.channels_last}
    for x, of_layer in ((plain.to(**last), w), (plain, w.to(**last))):
        with switching.accelerated("conv2d", row=row):
            hits = switching.hits("conv2d")
            y = F.conv2d(x, of_layer)
            assert hits.accelerated == 0
        assert y.stride() == F.conv2d(x, of_layer).stride()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", ["3x3", "3x3 strided", "grouped", "signal"])
def test_what_is_not_finite_stays_where_stock_has_it(
    name: str, row: str, bad: float
) -> None:
    x, w, b = drawn(name)
    x.view(-1)[x.numel() // 3] = bad
    options = CASES[name][2]
    stock = convolution(x)(x, w, b, **options)
    with switching.accelerated("conv2d", row=row):
        hits = switching.hits("conv2d")
        ours = convolution(x)(x, w, b, **options)
        assert hits.accelerated == 1
    assert torch.equal(ours.isfinite(), stock.isfinite())
    assert torch.equal(ours.isnan(), stock.isnan())


@pytest.mark.parametrize("row", ROWS)
def test_layers_with_normalization_and_activation(row: str) -> None:
    torch.default_generator.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(16, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 32, 1), nn.ReLU6(),
    ).eval()  # fmt: skip
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    x = torch.randn(1, 16, 14, 14)
    x[0, 3, 5, 5] = math.nan
    with torch.no_grad():
        stock = net(x)
        with switching.accelerated("conv2d", row=row):
            hits = switching.hits("conv2d")
            ours = net(x)
            assert hits.accelerated == 2
    torch.testing.assert_close(ours, stock, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("row", ROWS)
def test_results_in_channels_last_lie_as_stock_has_them(row: str) -> None:
    x, w, b = laid_out(*drawn("3x3 strided"), last=True)
    options = CASES["3x3 strided"][2]
    stock = F.conv2d(x, w, b, **options)
    with switching.accelerated("conv2d", row=row):
        hits = switching.hits("conv2d")
        ours = F.conv2d(x, w, b, **options)
        assert hits.accelerated == 1
    assert ours.stride() == stock.stride()


MANY = (64, 16, 3, 3)
LAST = torch.channels_last
AS_EVER = torch.contiguous_format


@pytest.mark.parametrize("row", OF_ONE)
@pytest.mark.parametrize(
    ("sizes", "weight", "layout", "pays"),
    [
        ((1, 16, 8, 8), MANY, AS_EVER, True),
        ((2, 16, 8, 8), MANY, AS_EVER, False),
        ((1, 16, 8, 8), (63, 16, 3, 3), AS_EVER, False),
        ((1, 128, 8, 8), (128, 128, 3, 3), LAST, True),
        ((2, 128, 8, 8), (128, 128, 3, 3), LAST, False),
        ((1, 128, 8, 8), (64, 128, 3, 3), LAST, False),
        ((1, 64, 8, 8), (128, 64, 3, 3), LAST, False),
        ((5, 24, 1, 1), (6, 24, 1, 1), AS_EVER, True),
        ((5, 25, 1, 1), (6, 25, 1, 1), AS_EVER, False),
        ((1, 25, 1, 1), (6, 25, 1, 1), AS_EVER, True),
        ((1, 24, 2, 2), (64, 24, 1, 1), AS_EVER, False),
    ],
)
def test_a_table_names_it_for_what_it_is_measured_for(
    row: str,
    sizes: tuple[int, ...],
    weight: tuple[int, ...],
    layout: Any,
    pays: bool,
    tmp_path: Path,
) -> None:
    x, w = (torch.randn(s).to(memory_format=layout) for s in (sizes, weight))
    with switching.named(tmp_path, ["conv2d"], row):
        hits = switching.hits("conv2d")
        F.conv2d(x, w)
        assert hits.accelerated == pays
        assert hits.forwarded == ({} if pays else {"not measured faster": 1})
        with switching.pins(["conv2d"], row):
            F.conv2d(x, w)
            assert _C.pinned_pays() == pays


@pytest.mark.parametrize("row", OF_BATCHES)
@pytest.mark.parametrize(
    ("sizes", "layout", "pays"),
    [
        ((2, 16, 8, 8), AS_EVER, True),
        ((1, 16, 8, 8), AS_EVER, False),
        ((2, 16, 20, 20), AS_EVER, False),
        ((2, 16, 8, 8), LAST, False),
    ],
)
def test_a_table_names_that_of_batches_for_them(
    row: str, sizes: tuple[int, ...], layout: Any, pays: bool, tmp_path: Path
) -> None:
    x, w = (torch.randn(s).to(memory_format=layout) for s in (sizes, MANY))
    with switching.named(tmp_path, ["conv2d"], row):
        hits = switching.hits("conv2d")
        F.conv2d(x, w)
        assert hits.accelerated == pays


def test_toggled_while_in_use() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1, groups=4)
    )
    hold_in_threads(net, torch.randn(4, 3, 20, 20), ("conv2d",), ROWS[-1])
