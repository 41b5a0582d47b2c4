"""``python -m benchmarks gpu``, on the emulated device: all of it but the times."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import native
import pytest
import torch
from switching import environment

from benchmarks.gpu import ceilings, graphs
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.operators import OPERATORS
from benchmarks.gpu.rows import Row
from benchmarks.gpu.timing import Budget, Setting

PROGRAM = """
import ctypes, sys
import emulation
emulation.load()
emulation.give_machine_code()
ctypes.CDLL(sys.argv.pop(1))  # takes the name of cuBLASLt
from benchmarks.__main__ import main
sys.exit(main(sys.argv[1:]))
"""

CUBLASLT = ("emulated_lt", "emulated_lt_checks", "emulated_lt_math")


Rows = list[dict[str, str]]


def measured(folder: Path, *parts: str) -> Rows:
    """What a run of these parts wrote."""
    library = folder / "libcublasLt.so.13"
    native.Builder(folder).library(library, native.test_sources(*CUBLASLT))
    command = [sys.executable, "-c", PROGRAM, str(library), "gpu", "--budget", "400"]
    command += ["--csv", str(folder / "gpu.csv"), "--json", str(folder / "gpu.json")]
    env = environment()
    env["PYTHONPATH"] += f":{native.ROOT / 'tests' / 'cuda_emulation'}"
    said = native.run([*command, "--parts", *parts], env=env, cwd=native.ROOT)
    print(said)
    text = (folder / "gpu.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(x for x in text.splitlines() if x[0] != "#"))
    document = json.loads((folder / "gpu.json").read_text(encoding="utf-8"))
    assert len(document["rows"]) == len(rows)
    assert "emulated" in document["environment"]["device"]
    assert all(row["note"].startswith("emulated") for row in rows)
    assert not [row for row in rows if "failed" in row["note"]]
    assert f"{len(rows)} rows, 0 failed" in said
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    parts = "ceilings", "epilogues", "launches", "operators", "quantized", "optimizers"
    return measured(tmp_path_factory.mktemp("gpu"), *parts, "graphs")


def served(rows: Rows, section: str, name: str) -> set[str]:
    return {
        r["served"]
        for r in rows
        if (r["section"], r["variant"]) == (section, "ours")
        and r["case"].startswith(name)
    }


def test_every_part_has_rows(rows: Rows) -> None:
    sections = {"device", "epilogue", "launches", "operator", "quantized", "optimizer"}
    sections.add("graphs")
    assert {row["section"] for row in rows} == sections
    [copy] = [row for row in rows if row["case"].startswith("copy")]
    assert float(copy["copy_share"]) == 1
    products = [r for r in rows if r["case"].startswith("product")]
    assert [r["dtype"] for r in products] == list(ceilings.DTYPES)


def test_products_that_a_device_has_not_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy = Row("device", "copy", "uint8", "measured", "")

    def refuse(case: str, *_: Any) -> Row:
        raise error

    monkeypatch.setattr(ceilings, "_copy", lambda *_: copy)
    monkeypatch.setattr(ceilings, "_product", refuse)
    error: Exception = NotImplementedError("not on this one\nbut on others")
    first, *found = ceilings.rows(Setting(Budget(1)))
    assert first is copy
    assert [r.dtype for r in found] == list(ceilings.DTYPES)
    said = "NotImplementedError: not on this one"
    for r in found:
        is_refused = r.dtype in ("int8", "float8")
        assert r.served == ("refused" if is_refused else "")
        assert r.note == (said if is_refused else f"failed: {said}")
    error = AttributeError("a fault of the benchmark's")
    with pytest.raises(AttributeError):
        list(ceilings.rows(Setting(Budget(1))))


def test_every_operator_is_measured_beside_stock(rows: Rows) -> None:
    for operator in OPERATORS:
        own = [r for r in rows if r["case"].startswith(f"{operator.name}, ")]
        ways = {r["case"].rpartition(", ")[2] for r in own}
        assert ways == {"forward", "forward and backward"}, operator.name
        assert {r["variant"] for r in own} == {"stock", "ours"}
        has_bytes = operator.moved(operator.tiny, 4) != (0, 0)
        assert all(float(r["gb_s"]) > 0 for r in own) == has_bytes
        assert all(r["served"] for r in own if r["variant"] == "ours")


def test_quantized_layers_are_measured_beside_bfloat16(rows: Rows) -> None:
    own = {r["variant"]: r["served"] for r in rows if r["section"] == "quantized"}
    assert set(own) == {"stock", "int8", "fp8", "_scaled_mm"}
    assert own["int8"] == own["fp8"] == "yes"


def test_rows_tell_whether_we_served(rows: Rows) -> None:
    assert served(rows, "operator", "log_softmax") == {"yes"}
    assert served(rows, "operator", "max_pool2d") == {"yes"}
    for name in ("residual + ", "silu(a) * b", "relu(a + b)"):
        assert served(rows, "operator", name) == {"yes"}
    for name in ("SGD", "Adam", "AdamW", "zero_grad"):
        assert served(rows, "optimizer", name) == {"yes"}


def test_graphs_say_why_there_are_none(rows: Rows) -> None:
    own = [r for r in rows if r["section"] == "graphs"]
    assert [r["variant"] for r in own] == ["stock", "ours"] * len(graphs.PROGRAMS)
    found = {r["served"] for r in own if r["variant"] == "ours"}
    assert found == {"this torch has no CUDA graphs"}


def test_epilogues_are_asked_of_the_library(rows: Rows) -> None:
    """The stand-in has all, but no TF32 of other types, which nobody asks for."""
    own = [r for r in rows if r["section"] == "epilogue"]
    assert len(own) == 9 * 4 * 2
    assert {r["served"] for r in own} == {"supported"}


def test_launches_are_counted(rows: Rows) -> None:
    """Stock's are those of torch's sources, see the benchmark; ours are fewer."""
    found = {
        (r["case"].rpartition(", ")[2], r["variant"]): int(r["launches"])
        for r in rows
        if r["section"] == "launches"
    }
    forward, backward = 13, 22
    assert found["SGD", "stock"] == forward + backward + 1
    assert found["SGD", "ours"] < found["SGD", "stock"]
    assert found["Adam", "ours"] == found["SGD", "ours"]
    assert found["Adam", "stock"] > found["SGD", "stock"]
    momentum = "SGD with momentum"  # by modules: each ReLU goes with its pool
    assert found[momentum, "stock"] > found["SGD", "stock"]
    assert found[momentum, "ours"] == found["SGD", "ours"] - 4


@pytest.mark.long
def test_models_and_first_steps(tmp_path: Path) -> None:
    rows = measured(tmp_path, "models", "first-step", "compiled")
    [trained] = served(rows, "model", "the article's SimpleCNN, batch 64, training")
    assert "max_pool2d:2 max_pool2d_backward:2" in trained
    assert "sgd_step:1" in trained
    ways = [r["case"].rpartition(", ")[2] for r in rows if r["variant"] == "ours"]
    assert ways == ["training", "inference"] * len(MODELS)
    first = [r for r in rows if r["section"] == "first step"]
    assert first
    assert {r["served"] for r in first} == {"yes"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_the_reason_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as caught:
        main(["gpu", "--budget", "1"])
    assert caught.value.code == 2
    assert "no CUDA device: none: " in capsys.readouterr().err
