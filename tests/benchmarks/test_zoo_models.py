"""The models that ``python -m benchmarks zoo`` has."""

from __future__ import annotations

import pytest

import pai_torchacc as ptac
from benchmarks.__main__ import main
from benchmarks.zoo import choice, model
from benchmarks.zoo.measuring import Setting
from benchmarks.zoo.model import MODELS


def test_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(model, "is_installed", lambda package: package == "torchvision")
    assert main(["zoo", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {x.strip() for x in lines if x.startswith("  ")} == set(MODELS)
    assert lines[0] == "images:"
    assert {"torchvision:", "timm: (not installed)"} <= set(lines)
    assert main(["zoo", "--list", "sequences"]) == 0
    out = capsys.readouterr().out
    assert "M5 for speech" in out
    assert "LeNet" not in out
    with pytest.raises(SystemExit):
        main(["zoo", "--list", "no such model"])


def test_large_models_have_to_be_asked_for() -> None:
    small, _ = choice.chosen([], takes_all=False)
    large = {n for n, m in MODELS.items() if m.group in model.PACKAGES}
    assert set(small) == set(MODELS) - large
    assert {MODELS[n].group for n in large} == set(model.PACKAGES)
    assert all(n.startswith(f"{MODELS[n].group} ") for n in large)


def run(name: str, way: str) -> None:
    call = Setting(name, way, "close", 1).build()
    call()
    with ptac.enable():
        call()


@pytest.mark.long
@pytest.mark.parametrize("way", ["inference", "training"])
def test_every_small_model_runs(way: str) -> None:
    for name in choice.chosen([], takes_all=False)[0]:
        run(name, way)


@pytest.mark.long
@pytest.mark.parametrize("package", model.PACKAGES)
def test_large_models_run(package: str) -> None:
    if not model.is_installed(package):
        pytest.skip(f"{package} is not installed: pip install 'pai-torchacc[zoo]'")
    for name in choice.chosen([package], takes_all=False)[0]:
        if "batch" not in name or name.endswith("batch 1"):
            run(name, "inference")
