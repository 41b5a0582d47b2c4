"""What the report says of convolutions on CUDA; torch's settings are torch's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import pai_torchacc as ptac
from pai_torchacc.fusion import cudnn


def lines() -> list[str]:
    return [x for x in ptac.report().splitlines() if x.startswith("convolutions on")]


@pytest.fixture
def _with_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand in for the hardware: a process that uses CUDA, with cuDNN."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)


def test_nothing_without_cuda() -> None:
    with ptac.enable("operator_fusion"):
        assert lines() == []


@pytest.mark.usefixtures("_with_cudnn")
def test_follows_torchs_settings() -> None:
    with ptac.enable("operator_fusion"):
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, allow_tf32=True):
            (line,) = lines()
            assert "cuDNN 91002" in line
            assert "heuristics" in line
            assert "TF32" in line
            assert "deterministic" not in line
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=True, deterministic=True, allow_tf32=False
        ):
            (line,) = lines()
            assert "as timed at a shape's first call" in line
            assert "float32 as float32" in line
            assert "deterministic" in line
        with torch.backends.cudnn.flags(enabled=False):
            assert "switched off" in lines()[0]
    assert lines() == []


def test_without_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: False)
    assert "no cuDNN" in cudnn.remarks(torch)[0]


@pytest.mark.parametrize(("allowed", "said"), [(True, "TF32"), (False, "float32 as f")])
def test_a_torch_with_one_setting_for_all(allowed: bool, said: str) -> None:
    settings = SimpleNamespace(allow_tf32=allowed)
    assert said in cudnn._precision(settings)
