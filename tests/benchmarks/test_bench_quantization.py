"""``python -m benchmarks quantization``.

Models are quantized by a stand-in, whose weights are rounded to eight bits and which
computes in float32, so that what is measured and compared is known.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from results import rows_of
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks import targets
from benchmarks.__main__ import main
from benchmarks.quantization import figures, run, variants, whole
from benchmarks.quantization.cases import CASES, LINEAR, THIN, Case
from benchmarks.quantization.figures import Row, Setting
from pai_torchacc.bench.run import read_targets

pytestmark = pytest.mark.long

SETTING = Setting(n_threads=1, blocks=2, block_s=1e-4)
LAYER = Case(
    "a layer", LINEAR, lambda: nn.Linear(64, 32), lambda: torch.randn(16, 64), ("mean",)
)


def rounded(model: nn.Module, method: str = "auto") -> nn.Module:
    if method not in ("auto", "int8"):
        raise ValueError(f"method may be auto or int8, not {method}")
    for name, p in model.named_parameters():
        if p.dim() > 1 and name.endswith("weight"):
            scale = p.data.flatten(1).abs().amax(1) / 127
            scale = scale.view(-1, *[1] * (p.dim() - 1))
            p.data = (p.data / scale).round() * scale
    return model


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(model: nn.Module, file: Path) -> nn.Module:
        model.load_state_dict(torch.load(file))
        return model

    for name, function in {
        "quantize_model": rounded,
        "enable_model_quantization": lambda: None,
        "dequantize_state_dict": dict,
        "save_quantized": lambda model, file: torch.save(model.state_dict(), file),
        "load_quantized": load,
    }.items():
        monkeypatch.setattr(ptac, name, function, raising=False)


def measured(case: Case, setting: Setting = SETTING) -> dict[tuple[str, str, str], Row]:
    return {(r.figure, r.variant, r.against): r for r in figures.measure(case, setting)}


def test_a_layer_beside_stock() -> None:
    rows = measured(LAYER)
    assert set(rows) == {
        ("speed", "ptac", "stock"),
        ("speed, upper end", "ptac", "stock"),
        ("SQNR", "ptac", ""),
        ("agreement", "ptac", ""),
    }
    assert all(row.passes_gate for row in rows.values())
    assert 40 < rows["SQNR", "ptac", ""].value < 60
    speed = rows["speed", "ptac", "stock"]
    assert speed.value == pytest.approx(speed.rival_ms / speed.ms) and speed.ms > 0
    assert rows["speed, upper end", "ptac", "stock"].value == speed.high >= speed.low
    assert not ptac.is_enabled("operator_fusion")


def test_stock_is_measured_unquantized(monkeypatch: pytest.MonkeyPatch) -> None:
    """``quantize_model`` works in place: it must not get stock's own module."""
    seen: list[nn.Module] = []
    forward = nn.Linear.forward

    def watched(self: nn.Linear, x: Tensor) -> Tensor:
        if not any(self is module for module in seen):
            seen.append(self)
        return forward(self, x)

    monkeypatch.setattr(nn.Linear, "forward", watched)
    measured(LAYER)
    single = [m.weight for m in seen if m.weight.dtype == torch.float32]
    assert len(single) == 2
    assert not torch.equal(*single)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda y: y + 0.1 * torch.randn_like(y),
        lambda y: y * float("nan"),
        lambda y: y.bfloat16(),
        lambda y: y[:-1],
        torch.zeros_like,
    ],
    ids=["noise", "nan", "dtype", "shape", "zeros"],
)
def test_wrong_numbers_do_not_pass(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoilt(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return spoil(super().forward(x))

    def quantize(model: nn.Module) -> nn.Module:
        model.__class__ = Spoilt
        return model

    monkeypatch.setattr(ptac, "quantize_model", quantize)
    wanted = [{"figure": "speed", "against": "stock", "at_least": 0.0}]
    rows = list(measured(LAYER).values())
    assert not any(row.passes_gate for row in rows)
    verdict = targets.judge(rows, wanted, ours="ptac")
    assert verdict.met == 0
    assert "numbers outside the contract" in verdict.missed[0]
    assert not any(row.passes_gate for row in figures.means(rows, [LAYER]))


def test_noise_in_decibels() -> None:
    truth = torch.ones(100, dtype=torch.float64)
    assert figures.signal_to_noise_db(truth * 1.01, truth) == pytest.approx(40)
    assert figures.signal_to_noise_db(truth, truth) == figures.EXACT_DB
    assert figures.signal_to_noise_db(truth / 0, truth) == 0
    assert figures.agreement(torch.eye(4), torch.eye(4)[[0, 1, 2, 2]]) == 75


def test_peers_stand_beside() -> None:
    def noisy(holder: nn.Sequential, _: Tensor) -> None:
        holder[0].weight.data += 0.1

    def refuses(holder: nn.Sequential, sample: Tensor) -> None:
        raise NotImplementedError(f"no {sample.dim()}-d\nand a long story")

    def nothing(holder: nn.Sequential, _: Tensor) -> None: ...

    peers = (
        variants.Peer("noisy", "torch", noisy),
        variants.Peer("refuses", "torch", refuses),
        variants.Peer("idle", "torch", nothing),
    )
    setting = Setting(1, blocks=2, block_s=1e-4, peers=peers)
    rows = measured(LAYER, setting)
    assert [str(f) for f in setting.failed] == [
        "a layer, 1 thread(s), refuses: NotImplementedError: no 2-d"
    ]
    assert not rows["speed", "noisy", "stock"].passes_gate
    assert rows["speed", "ptac", "best peer"].rival == "idle"
    assert "than best peer" in text(run._cases(list(rows.values())))


@pytest.mark.parametrize("peer", variants.installed(), ids=lambda p: p.name)
def test_peers_take_layers(peer: variants.Peer) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 32), torch.randn(16, 64)
    with torch.no_grad():
        truth = figures.reference(layer, x)
        y = peer.quantize(layer, x)(x)
    assert y.dtype == torch.float32
    assert 30 < figures.signal_to_noise_db(y, truth) < 70  # neither wrong nor float32


def speed(name: str, value: float, **more: Any) -> Row:
    values = {"figure": "speed", "variant": "ptac", "against": "stock", "unit": "ratio"}
    values |= {"n_threads": 1, "of_medians": value, "workload": name, "value": value}
    return Row(**(values | more))


def test_means_are_of_whole_sets() -> None:
    cases = [Case(n, LINEAR, nn.Identity, torch.empty, ("mean",)) for n in "ab"]
    rows = [speed("a", 2.0), speed("b", 8.0), speed("a", 3.0, n_threads=2)]
    found = {(r.figure, r.n_threads): r.value for r in figures.means(rows, cases)}
    assert found == {("speed, mean", 1): pytest.approx(4), ("speed, least", 1): 2.0}


def test_every_target_is_of_something_measured() -> None:
    """Each fits a row of a run that measures everything."""
    rows = [
        speed(case.name, 9.0, n_threads=n, against=against)
        for case in CASES
        for n in (1, 2)
        for against in ("stock", "best peer")
    ]
    for case in CASES:
        rows.append(speed(case.name, 99.0, figure="SQNR", against="", unit="dB"))
    rows += list(figures.means(rows, CASES))
    for case in CASES:
        rows.append(speed(case.name, 1.0, figure="speed, upper end"))
    for what, name, value in (
        *((f, "BERT-small", 9.0) for f in ("state_dict", "coded file", "quantizing")),
        ("accuracy lost", "MLP64 trained on digits", 0.0),
        ("agreement", "MLP64 trained on digits", 100.0),
    ):
        rows.append(speed(name, value, figure=what, against=""))
    verdict = targets.judge(rows, read_targets("quantization_target"), ours="ptac")
    assert verdict.unmeasured == []
    assert verdict.missed == []
    slow = [speed(case.name, 0.96, figure="speed, upper end") for case in CASES]
    wanted = read_targets("quantization_target")
    assert len(targets.judge(slow, wanted, ours="ptac").missed) == len(CASES)


def test_the_grid_has_its_means() -> None:
    grid = [case for case in CASES if case.part == LINEAR]
    assert len({case.name for case in CASES}) == len(CASES)
    for case in grid:
        module, x = case.build()
        with torch.no_grad():
            assert module(x).shape == (len(x), module.out_features)
        assert bool(case.means) == (module.out_features > THIN)
        n_operations = 2 * len(x) * module.weight.numel()
        assert case.n_operations == n_operations


def text(table: Any) -> str:
    from rich.console import Console

    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def test_the_command(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "CASES", (LAYER,))
    command = ["quantization", "--quick", "--threads", "1", "--parts", LINEAR]
    files = [tmp_path / name for name in ("q.csv", "q.png", "q.json")]
    before = torch.get_num_threads()
    outputs = ["--csv", str(files[0]), "--plot", str(files[1]), "--json", str(files[2])]
    assert main([*command, *outputs, "--method", "int8"]) == 0
    assert torch.get_num_threads() == before
    out = capsys.readouterr().out
    assert "a layer" in out
    assert "speed, mean" in out
    rows = rows_of(files[0])
    assert {"speed", "SQNR", "agreement", "speed, mean"} <= {r["figure"] for r in rows}
    assert files[1].stat().st_size > 0
    assert json.loads(files[2].read_text())["failed"] == []

    wanted = [
        {"figure": name, "against": "stock", "at_least": 1e9} for name in ("speed", "x")
    ]
    monkeypatch.setattr(run, "read_targets", lambda table: wanted)
    assert main([*command, "--check"]) == 1
    out = capsys.readouterr().out
    assert "missed: a layer, speed against stock, 1 thread(s)" in out
    assert "not measured: *, x against stock" in out
    with pytest.raises(SystemExit):
        main([*command, "--method", "wrong"])
    assert "may be auto or int8, not wrong" in capsys.readouterr().err
    monkeypatch.delattr(ptac, "quantize_model")
    with pytest.raises(SystemExit):
        main(command)
    assert "cannot quantize" in capsys.readouterr().err


def test_what_fails_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> nn.Module:
        raise RuntimeError("no such layer")

    case = Case("a broken one", LINEAR, broken, torch.empty)
    monkeypatch.setattr(run, "CASES", (case, LAYER))
    command = ["quantization", "--quick", "--threads", "1", "--parts", LINEAR]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "failed: a broken one, 1 thread(s), ptac: RuntimeError: no such" in out
    assert "a layer" in out


def test_bytes_and_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the stand-in all is as large as float32, and files have to be read."""
    monkeypatch.setattr(whole, "BertSmall", lambda: nn.Embedding(30522, 4))
    monkeypatch.setattr(whole, "EPOCHS", 2)
    monkeypatch.setattr(whole, "ROUNDS", 1)
    rows = {(r.figure, r.workload): r for r in whole.sizes(SETTING)}
    assert rows["state_dict", "BERT-small"].value == 100
    assert 100 < rows["coded file", "ResNet-18"].value < 101
    assert rows["quantizing", "ResNet-18"].value > 0
    assert all(row.passes_gate for row in rows.values())
    monkeypatch.setattr(ptac, "load_quantized", lambda model, file: model)
    rows = {(r.figure, r.workload): r for r in whole.sizes(SETTING)}
    assert not rows["coded file", "ResNet-18"].passes_gate
    assert rows["state_dict", "ResNet-18"].passes_gate

    rows = {(r.figure, r.workload): r for r in whole.trained(SETTING)}
    for name in ("MLP64", "SimpleCNN"):
        assert abs(rows["accuracy lost", f"{name} trained on digits"].value) < 1
        assert rows["agreement", f"{name} trained on digits"].value > 95
