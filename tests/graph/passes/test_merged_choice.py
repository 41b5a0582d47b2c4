"""Which row a convolution with a norm behind it is given: a pass is spared as well."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from planning import counts, kinds
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C

HEAD = "op,kind,dtype,threads,work,row,ratio,stock_us\n"


def table(folder: Path, ratio: float, stock_us: float) -> str:
    """A table of one place, where a row of ours is that fast."""
    (rows,) = (rows for name, _, rows in _C.operators() if name == "conv2d")
    row = next(
        name
        for name, _, can_run, _ in rows
        if can_run and name.startswith("winograd_2x2_a")
    )
    path = folder / "table.csv"
    lines = (
        f"conv2d,{kind},float32,{n_threads},1,{row},{ratio},{stock_us}\n"
        for kind in ("3x3_16", "any")
        for n_threads in (1, 2)
    )
    path.write_text(HEAD + "".join(lines))
    return str(path)


@pytest.mark.parametrize(
    ("ratio", "stock_us", "has_norm", "is_ours"),
    [
        (1.2, 1.0, False, True),  # faster alone
        (0.98, 1.0, False, False),
        (0.98, 1e-3, True, True),  # what is spared is much beside stock's time
        (0.98, 1e6, True, False),  # and hardly any
        (0.2, 1.0, True, False),
    ],
)
def test_what_is_spared_counts(
    tmp_path: Path, ratio: float, stock_us: float, has_norm: bool, is_ours: bool
) -> None:
    layers = [nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32)][: 1 + has_norm]
    model, x = nn.Sequential(*layers).eval(), torch.randn(4, 16, 30, 30)
    ptac.enable("operator_fusion", calibration=table(tmp_path, ratio, stock_us))
    ptac.optimize(model)
    with torch.no_grad():
        for _ in range(3):
            model(x)
    assert counts(model) == (1, 2)
    assert (kinds(model)[0] in ("conv", "row")) is is_ours
