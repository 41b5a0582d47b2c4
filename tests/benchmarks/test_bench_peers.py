"""``python -m pai_torchacc bench peers``: plans beside other engines."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.peers import rivals, run


def like_stock(net: nn.Module, inputs: Any) -> Any:
    """An engine that is torch itself."""

    def call() -> Any:
        with torch.no_grad():
            return net(*inputs)

    return call


def wrong(net: nn.Module, inputs: Any) -> Any:
    """An engine whose numbers are not the network's."""
    return lambda: like_stock(net, inputs)() + 1000


def absent(net: nn.Module, inputs: Any) -> Any:
    """An engine that is not installed."""
    raise ModuleNotFoundError("No module named 'engine'", name="engine")


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, prepare in (("onnxruntime", like_stock), ("openvino", wrong)):
        monkeypatch.setitem(rivals.RIVALS, name, prepare)
    monkeypatch.setitem(rivals.RIVALS, "inductor", absent)


@pytest.mark.usefixtures("engines")
def test_rivals_that_run_and_such_that_do_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    n_threads, path = torch.get_num_threads(), tmp_path / "peers.csv"
    try:
        words = ["peers", "tabular", "--quick", "--batches", "1", "--csv", str(path)]
        every = ["--rivals", "onnxruntime", "openvino", "inductor"]
        assert main([*words, *every]) == 0
    finally:
        torch.set_num_threads(n_threads)
    out = capsys.readouterr().out
    assert "openvino not measured: ValueError" in out
    assert "inductor not measured: ModuleNotFoundError" in out
    assert "against the faster of onnxruntime, openvino" in out
    (row,) = csv.DictReader(path.open())
    assert float(row["planned_us"]) > 0
    assert float(row["onnxruntime_us"]) > 0
    assert row["openvino_us"] == row["inductor_us"] == ""


def test_ratios() -> None:
    row = run.Row("net", 1, 1, {"planned": 2.0, "a": 3.0, "b": 5.0})
    assert row.against(["a", "b"]) == 1.5
    assert row.against(["b"]) == 2.5
    assert row.against(["c"]) is None


def test_no_such_model() -> None:
    with pytest.raises(SystemExit):
        main(["peers", "no such model"])
