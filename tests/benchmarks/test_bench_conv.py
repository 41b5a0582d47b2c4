"""``python -m benchmarks conv``."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import switching
import torch

import pai_torchacc as ptac
from benchmarks.__main__ import main

pytestmark = pytest.mark.long


def test_every_algorithm_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "conv.csv"
    before = torch.get_num_threads()
    command = ["conv", "--shapes", "2,16,16,24", "--threads", "1"]
    assert main([*command, "--numerics", "fast", "--csv", str(path)]) == 0
    assert torch.get_num_threads() == before
    assert "2x16@16 to 24, 3x3" in capsys.readouterr().out
    lines = [x for x in path.read_text().splitlines() if not x.startswith("#")]
    rows = list(csv.DictReader(lines))
    for result in ("forward", "data", "weight"):
        found = {r["algorithm"]: r for r in rows if r["result"] == result}
        assert {"stock", "by the table"} <= set(found)
        isa = switching.runnable_rows("conv2d")[-1].rpartition("_")[2]
        if isa != "scalar":
            assert f"winograd_4x2_{isa}" in found
        assert found["by the table"]["row"] in found
        assert float(found["stock"]["error"]) == float(found["stock"]["ratio"]) == 1
        for name, row in found.items():
            assert float(row["gflops"]) > 0, name
            is_bounded_by_us = name not in ("NNPACK", "bf16")
            assert float(row["error"]) < 10 or not is_bounded_by_us, name


def test_a_shape_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("2,16", "2,16,8,16,4", "2,16,0,16", "two"):
        with pytest.raises(SystemExit) as caught:
            main(["conv", "--shapes", wrong])
        assert caught.value.code == 2
        assert "a shape is N,C,WIDTH,K" in capsys.readouterr().err


def test_memory_to_work_in_is_told_and_given_back() -> None:
    x, weight = torch.randn(2, 20, 16, 16), torch.randn(24, 20, 3, 3)
    key = "ptac.scratch_bytes.current"

    def use() -> None:
        hits = switching.hits("conv2d")
        torch.nn.functional.conv2d(x, weight, padding=1)
        assert hits.accelerated == 1
        assert ptac.memory_stats()[key] > 0

    with switching.accelerated("conv2d"):
        use()
        assert ptac.memory_stats()[key] <= 8 << 20
        assert ptac.empty_cache() > 0
        assert ptac.memory_stats()[key] == 0
        use()
    ptac.disable()
    assert ptac.memory_stats()[key] == 0
