"""``calibrate --device cuda``: what is measured, written and told."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

import pai_torchacc as ptac
from pai_torchacc.__main__ import main
from pai_torchacc.bench import calibrate_cuda
from pai_torchacc.bench.cases import Case, cases

MOST = 2048
"""Elements: a thread of the emulation is slow."""


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> Iterator[Case]:
        return (c for c in cases() if isinstance(c.work, int) and c.work <= MOST)

    monkeypatch.setattr(calibrate_cuda, "cases", small)
    monkeypatch.setattr(
        calibrate_cuda.measure,
        "__defaults__",
        (None, 1, 0.0),
    )


def test_a_table_of_ratios(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrate_cuda, "LOSES", 1e9)  # each case is told
    path = tmp_path / "cuda.csv"
    assert main(["calibrate", str(path), "--device", "cuda"]) == 0
    assert not any(s["active"] for s in ptac.status().values())
    lines = path.read_text().splitlines()
    assert any(line.startswith("# device: ") for line in lines)
    rows = list(csv.DictReader(x for x in lines if x[0] != "#"))
    assert {r["row"] for r in rows} == {"cuda", "cuda_overlapping"}
    assert all(float(r["ratio"]) > 0 < float(r["stock_us"]) for r in rows)
    measured = {r["op"] for r in rows}
    assert measured >= {
        *("max_pool2d", "max_pool2d_backward", "log_softmax", "log_softmax_backward"),
        *("sgd_step", "adam_step", "adamw_step"),
    }
    said = capsys.readouterr().out
    for op in measured:
        assert f"\n{op}: " in f"\n{said}"
        assert f"slower than stock: {op} (cuda" in said
    assert f"{len(rows)} measurements in {path}" in said


def test_some_operators_alone(tmp_path: Path) -> None:
    path = tmp_path / "cuda.csv"
    command = ["calibrate", str(path), "--device", "cuda", "--ops", "log_softmax"]
    assert main(command) == 0
    rows = [x for x in path.read_text().splitlines() if x.startswith("log_softmax")]
    assert rows
    assert all(row.startswith("log_softmax,") for row in rows)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ops", "conv2d"], "nothing to measure on CUDA for conv2d; there are: "),
        (["--generic"], "--generic is for CPUs"),
    ],
)
def test_wrong_use(
    tmp_path: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["calibrate", str(tmp_path / "x.csv"), "--device", "cuda", *words])
    assert caught.value.code == 2
    assert text in capsys.readouterr().err
