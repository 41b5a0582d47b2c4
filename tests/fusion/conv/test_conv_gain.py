"""Which convolutions run as products in place, by what the gain is expected to be."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F

import pai_torchacc as ptac
from benchmarks.extension import function
from benchmarks.prices import Amounts
from pai_torchacc import _C, calibration

OPS = ("conv2d", "conv2d_backward")
ROWS = [row for row in switching.runnable_rows("conv2d") if row.startswith("implicit")]

Geometry = tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]

GAINING: dict[str, Geometry] = {
    "few channels a group": ((4, 48, 28, 28), (48, 3, 3, 3), {"groups": 16}),
    "four channels a group": ((8, 32, 28, 28), (32, 4, 3, 3), {"groups": 8}),
    "strided": ((4, 16, 14, 14), (32, 16, 3, 3), {"stride": 2, "padding": 1}),
    "small": ((4, 8, 14, 14), (8, 8, 5, 5), {"padding": 2}),
}
LOSING: dict[str, Geometry] = {
    "3x3": ((4, 512, 14, 14), (512, 512, 3, 3), {}),
    "strided 3x3": ((4, 256, 28, 28), (256, 256, 3, 3), {"stride": 2}),
    "strided 5x5": ((2, 512, 14, 14), (512, 512, 5, 5), {"stride": 2}),
    "dilated": ((2, 128, 28, 28), (128, 128, 3, 3), {"dilation": 2}),
}


def table(folder: Path, row: str) -> Path:
    """One that names the row at any place, where nothing was measured of the kind."""
    lines = [",".join(calibration.COLUMNS)]
    lines += [
        f"{op},any{side},float32,{n_threads},0,{row},2,100"
        for op, side in (("conv2d", ""), *((OPS[1], s) for s in ("_data", "_weight")))
        for n_threads in (1, 2)
    ]
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def step(geometry: Geometry) -> tuple[int, int]:
    """How many of a convolution and its two gradients were served."""
    sizes, weight, options = geometry
    x, w = (torch.randn(s, requires_grad=True) for s in (sizes, weight))
    hits = [switching.hits(op) for op in OPS]
    F.conv2d(x, w, **options).sum().backward()
    return hits[0].accelerated, hits[1].accelerated


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("name", [*GAINING, *LOSING])
def test_what_is_expected_to_gain_is_served(
    row: str, name: str, tmp_path: Path
) -> None:
    path = table(tmp_path, row)
    with ptac.enable("operator_fusion", calibration=str(path)):
        assert step((GAINING | LOSING)[name]) == ((1, 2) if name in GAINING else (0, 0))


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", ROWS)
def test_stock_fills_up_four_channels_for_weights_but_not_three(
    row: str, tmp_path: Path
) -> None:
    """With AVX-512. What is seen of games, and images with a fourth channel."""
    path = table(tmp_path, row)
    with ptac.enable("operator_fusion", calibration=str(path)):
        for channels, n_served in ((3, 0), (4, int(row.endswith("avx512")))):
            hits = switching.hits("conv2d_backward")
            w = torch.randn(32, channels, 8, 8, requires_grad=True)
            F.conv2d(torch.randn(16, channels, 84, 84), w, stride=4).sum().backward()
            assert hits.accelerated == n_served


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", ROWS)
def test_points_of_few_images_are_atens(row: str, tmp_path: Path) -> None:
    """As of squeezed images. One that a kind was measured of is served."""
    path = table(tmp_path, row)
    own = f"conv2d_backward,1x1_point_{{}},float32,1,1,{row},2,100\n"
    path.write_text(path.read_text() + own.format("data") + own.format("weight"))
    with ptac.enable("operator_fusion", calibration=str(path)):
        for n, n_served in ((1, 2), (2, 0), (15, 0)):
            assert step(((n, 256, 1, 1), (96, 256, 1, 1), {})) == (0, n_served)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", ROWS)
def test_stocks_time_is_said_by_the_calls_own_kind(row: str, tmp_path: Path) -> None:
    """Unless the other kind serves the call: then by that one."""
    path = table(tmp_path, row)
    own = f"conv2d,strided_{{}},float32,1,0,{row},0.5,7000"
    lines = [own.format("256"), own.format("16")]
    path.write_text(path.read_text() + "\n".join(lines) + "\n")
    with ptac.enable("operator_fusion", calibration=str(path)):
        told = []
        for name in ("strided 3x3", "strided"):
            sizes, weight, options = (GAINING | LOSING)[name]
            before = _C.estimates("conv2d")
            F.conv2d(torch.randn(sizes), torch.randn(weight), **options)
            told.append(
                [a - b for a, b in zip(_C.estimates("conv2d"), before, strict=True)]
            )
    assert told == [[0, 0, 7_000_000], [100_000, 50_000, 0]]


@pytest.mark.parametrize("row", ROWS)
def test_other_formats_and_ranks_are_not(row: str, tmp_path: Path) -> None:
    x, w = torch.randn(4, 16, 14, 14), torch.randn(32, 16, 3, 3)
    path = table(tmp_path, row)
    with ptac.enable("operator_fusion", calibration=str(path)):
        hits = switching.hits("conv2d")
        F.conv2d(x, w, stride=2)
        assert hits.accelerated == 1
        F.conv2d(x.to(memory_format=torch.channels_last), w, stride=2)
        F.conv1d(x.flatten(2), w[:, :, 0].contiguous(), stride=2)
        F.conv3d(x[:, :, None], w[:, :, None], stride=2)
        F.conv_transpose2d(x, w.transpose(0, 1).contiguous(), stride=2)
        assert hits.accelerated == 1


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", [row for row in ROWS if row == "implicit_avx512"])
def test_amounts_are_those_of_the_call(row: str) -> None:
    """Blocks of stock's are 16 channels; of 24 taps along an axis 22 meet a pixel."""
    last = function("ptac_implicit_last_amounts", ctypes.POINTER(Amounts))().contents
    x, w = torch.randn(2, 20, 8, 8), torch.randn(40, 20, 3, 3)
    with switching.accelerated("conv2d", row=row):
        F.conv2d(x, w, padding=1)
    stock = [1, 2 * (22 * 22) * 32 * 48, x.numel(), 2 * 64 * 48, 32 * 48 * 9, 0, 0]
    assert list(last.stock) == pytest.approx(stock)
    assert not last.is_lowered
    # A strip of both images: 18 rows of 10 slots but the last two, in 12 vectors.
    copied = 20 * 2 * 10 * 10
    assert last.ours[0] == 1
    assert last.ours[1] == 20 * 9 * 5 * 4 * 12
    assert list(last.ours[3:6]) == [copied, 0, 0]
    assert last.ours[6] == 20 * 2 * 10
    assert last.ours[7] == 40 * 2 * 8
    assert last.ours[8] == w.numel()
    with switching.accelerated("conv2d", row=row):
        F.conv2d(x[:1], w)
    assert last.ours[0] == 0, "ATen's own, of which nothing is known"
    assert _C.pinned("conv2d") is None


@pytest.mark.parametrize("row", ROWS)
def test_what_no_plan_is_made_for_is_not_estimated(row: str, tmp_path: Path) -> None:
    """More phases than a plan has room for; a kernel whose taps reach too far."""
    path = table(tmp_path, row)
    with ptac.enable("operator_fusion", calibration=str(path)):
        assert step(((2, 8, 130, 130), (8, 8, 65, 65), {"stride": 65})) == (0, 0)
        assert step(((2, 8, 80, 80), (8, 8, 40, 40), {"stride": 40})) == (0, 0)
        far = {"dilation": 60, "padding": 60}
        assert step(((2, 256, 4, 4), (8, 256, 3, 3), far)) == (0, 0)


@pytest.mark.parametrize("row", ROWS)
def test_gradients_of_transposes_are_as_tables_say(row: str, tmp_path: Path) -> None:
    x = torch.randn(2, 16, 2, 2, requires_grad=True)
    w = torch.randn(16, 8, 2, 2, requires_grad=True)
    with switching.named(tmp_path, OPS, row):
        hits = switching.hits("conv2d_backward")
        F.conv_transpose2d(x, w, stride=2).sum().backward()
        assert hits.accelerated == 2
