"""``calibrate --device cuda``: what is measured, written, told and read back."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path

import cuda_tables
import pytest
import torch
from switching import FUSION, hits

import pai_torchacc as ptac
from pai_torchacc import _C, calibration
from pai_torchacc.__main__ import main
from pai_torchacc.bench import calibrate_cuda
from pai_torchacc.bench.cases import Case, cases_on_cuda

MOST, MOST_PRODUCTS = 2048, 2**20
"""Elements and multiply-adds: a thread of the emulation is slow."""


def is_small(case: Case) -> bool:
    if isinstance(case.work, int):
        return case.work <= MOST
    return math.prod(case.work) <= MOST_PRODUCTS


@pytest.fixture(autouse=True)
def few_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    def small() -> Iterator[Case]:
        return filter(is_small, cases_on_cuda())

    monkeypatch.setattr(calibrate_cuda, "cases_on_cuda", small)
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
    monkeypatch.setattr(calibrate_cuda, "NOT_SLOWER", 1e9)  # each case is told
    path = tmp_path / "cuda.csv"
    assert main(["calibrate", str(path), "--device", "cuda"]) == 0
    assert not any(s["active"] for s in ptac.status().values())
    lines = path.read_text().splitlines()
    assert f"# device: {_C.cuda_name(0)}" in lines
    rows = list(csv.DictReader(x for x in lines if x[0] != "#"))
    assert {r["row"] for r in rows} == {"cuda", "cuda_overlapping"}
    assert all(float(r["ratio"]) > 0 < float(r["stock_us"]) for r in rows)
    measured = {r["op"] for r in rows}
    assert measured >= {
        *("max_pool2d", "max_pool2d_backward", "log_softmax", "log_softmax_backward"),
        *("sgd_step", "adam_step", "adamw_step"),
        *("softmax", "layer_norm", "layer_norm_backward", "rms_norm"),
        *("cross_entropy", "linear_act", "mlp"),
    }
    layers = {(r["kind"], r["dtype"]) for r in rows if r["op"] == "mlp"}
    dtypes = "float32", "bfloat16", "float16"
    assert layers == {
        *((kind, dtype) for kind in ("act", "kernel") for dtype in dtypes),
        *(("act_tf32", "float32"), ("kernel_tf32", "float32")),
    }
    said = capsys.readouterr().out
    for op in measured:
        assert f"\n{op}: " in f"\n{said}"
        assert f"slower than stock: {op} (cuda" in said
    assert f"{len(rows)} measurements in {path}" in said


def test_some_operators_alone(tmp_path: Path) -> None:
    path = tmp_path / "cuda.csv"
    command = ["calibrate", str(path), "--device", "cuda", "--ops"]
    assert main([*command, "log_softmax"]) == 0
    softmax = calibration.read_table(path).measurements
    assert {m.op for m in softmax} == {"log_softmax"}
    assert main([*command, "sgd_step"]) == 0
    both = calibration.read_table(path).measurements
    assert {m.op for m in both} == {"log_softmax", "sgd_step"}
    assert set(softmax) <= set(both)
    assert "# operators not named there: device: " in path.read_text()


def test_what_was_measured_decides(tmp_path: Path) -> None:
    """Also of a layer that is far too small by the model."""
    path = tmp_path / "cuda.csv"
    main(["calibrate", str(path), "--device", "cuda", "--ops", "linear_act", "softmax"])
    table = calibration.read_table(path)
    assert table.device == _C.cuda_name(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    x = torch.randn(64, 64, device="cuda")
    found, layers = hits("softmax"), hits("linear_act")
    for ratio, expected in (("0.5", 0), ("1.5", 1)):
        lines = [
            f"{m.op},{m.kind},{m.dtype},{_work(m)},{m.row},{ratio},{m.stock_us}"
            for m in table.measurements
        ]
        made_up = cuda_tables.write(tmp_path / f"{ratio}.csv", lines)
        with ptac.enable(FUSION, calibration=made_up):
            torch.softmax(x, 1)
            net(x).sum().backward()
        assert found.accelerated == layers.accelerated == expected
    with ptac.enable(FUSION, calibration=path):
        assert ptac.status()[FUSION]["cuda_table"] == f"{path}, of {table.device}"


def _work(m: calibration.Measurement) -> str:
    return "x".join(map(str, m.work)) if isinstance(m.work, tuple) else str(m.work)


def test_every_case_has_its_place() -> None:
    kinds = {op: kinds for op, kinds, _ in _C.operators()}
    places = [(c.op, c.kind, c.dtype, c.work) for c in cases_on_cuda()]
    assert len(set(places)) == len(places)
    for op, kind, *_ in places:
        assert kind in kinds[op]


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (",".join(calibration.COLUMNS), "is of a CPU"),
        ("# device: another\n" + ",".join(calibration.CUDA_COLUMNS), "is of another"),
        ("op", "is not a calibration table"),
    ],
)
def test_tables_of_others_are_kept(
    head: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "table.csv"
    path.write_text(head + "\n")
    with pytest.raises(SystemExit):
        main(["calibrate", str(path), "--device", "cuda", "--ops", "softmax"])
    assert text in capsys.readouterr().err
    assert path.read_text() == head + "\n"


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
