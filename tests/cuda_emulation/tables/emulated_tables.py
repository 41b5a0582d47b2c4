"""Calibration tables of GPUs: what they decide, of which devices; broken files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cuda_tables
import emulation
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C, calibration

SLOWER = "max_pool2d,nchw,float32,{work},cuda,0.5,80.0"
FASTER = "max_pool2d,nchw,float32,{work},cuda,1.5,80.0"
SMALL, LARGE = (1, 2, 8, 8), (1, 2, 16, 16)


def table(folder: Path, *lines: str, device: str | None = None) -> Path:
    return cuda_tables.write(folder / "gpu.csv", lines, device)


def is_served(
    sizes: tuple[int, ...] = SMALL,
    device: str = "cuda",
    dtype: torch.dtype = torch.float32,
) -> bool:
    """Whether ours pools; if not, why is asserted; stock's bits in either case."""
    x = torch.randn(sizes, device=device, dtype=dtype)
    found = hits("max_pool2d")
    y = F.max_pool2d(x, 2)
    served, forwarded = found.accelerated, found.forwarded
    assert forwarded == ({} if served else {"not measured faster": 1})
    with ptac.disabled():
        assert torch.equal(F.max_pool2d(x, 2).cpu(), y.cpu())
    return bool(served)


def test_sizes_are_served_as_measured(tmp_path: Path) -> None:
    lines = SLOWER.format(work=100), FASTER.format(work=500)
    with ptac.enable(FUSION, calibration=table(tmp_path, *lines)):
        assert not is_served(SMALL)  # of 128 elements
        assert is_served(LARGE)  # of 512
        assert is_served((1, 1, 8, 8))  # smaller than all that were measured
    with ptac.enable(FUSION, calibration=table(tmp_path, *reversed(lines))):
        assert not is_served(SMALL)
    lines = FASTER.format(work=100), SLOWER.format(work=500)
    with ptac.enable(FUSION, calibration=table(tmp_path, *lines)):
        assert is_served(SMALL)
        assert not is_served(LARGE)


@pytest.mark.parametrize(("ratio", "expected"), [("0.96", False), ("0.98", True)])
def test_noise_is_no_verdict(ratio: str, expected: bool, tmp_path: Path) -> None:
    line = SLOWER.format(work=1).replace("0.5", ratio)
    with ptac.enable(FUSION, calibration=table(tmp_path, line)):
        assert is_served() is expected


def test_what_was_not_measured_is_served(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    with ptac.enable(FUSION, calibration=path):
        assert is_served(dtype=torch.bfloat16)
        x = torch.randn(SMALL, device="cuda")
        found = hits("max_pool2d")
        F.max_pool2d(x, 3, 3)  # of another kind
        F.max_pool2d(x.to(memory_format=torch.channels_last), 2)
        assert found.accelerated == 2
        softmax = hits("softmax")
        torch.softmax(x, -1)
        assert softmax.accelerated == 1


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: F.layer_norm(x, (8,)),
    "rms_norm": lambda x: F.rms_norm(x, (8,)),
    "cross_entropy": lambda x: F.cross_entropy(
        x, torch.zeros(len(x), dtype=torch.int64, device="cuda")
    ),
    "add_act": lambda x: ptac.ops.add_act(x, x, "relu"),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", CALLS)
def test_operators_of_every_dtype(op: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind = "alone" if op == "add_act" else "short"
    line = f"{op},{kind},{str(dtype).removeprefix('torch.')},1,cuda,0.5,9.0"
    x = torch.randn(4, 8, device="cuda", dtype=dtype)
    with ptac.enable(FUSION, calibration=table(tmp_path, line)):
        found = hits(op)
        y = CALLS[op](x)
        assert found.forwarded == {"not measured faster": 1}
        # Emulated devices compute stock's calls on the CPU, where ours may serve them.
        with ptac.disabled():
            torch.testing.assert_close(CALLS[op](x).cpu(), y.cpu())
    with ptac.enable(FUSION):
        found = hits(op)
        CALLS[op](x)
        assert found.accelerated == 1


def test_steps_of_optimizers(tmp_path: Path) -> None:
    line = "sgd_step,dense,float32,256,cuda,0.5,9.0"
    parameter = torch.nn.Parameter(torch.ones(300, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    with ptac.enable(FUSION, calibration=table(tmp_path, line)):
        found = hits("sgd_step")
        optimizer.step()
        assert found.forwarded == {"not measured faster": 1}
    with ptac.enable(FUSION):
        optimizer.step()
        assert found.accelerated == 1
    assert torch.equal(parameter.detach().cpu(), torch.zeros(300))


def test_off_and_on_again(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    with ptac.enable(FUSION, calibration=path):
        assert not is_served()
    with ptac.enable(FUSION):
        assert is_served()
        with ptac.enable(FUSION, calibration=path):
            assert not is_served()
        assert is_served()
    assert "cuda_table" not in ptac.status()[FUSION]


def test_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    monkeypatch.setenv("PTAC_CALIBRATION", str(path))
    with ptac.enable(FUSION):
        assert not is_served()
        with ptac.enable(FUSION, calibration=table(tmp_path, FASTER.format(work=1))):
            assert is_served()


def test_the_switch_starts_no_driver(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    emulation.calls()
    with ptac.enable(FUSION, calibration=path):
        assert list(emulation.calls()) == []
        assert not is_served()
        assert list(emulation.calls()).count("cuDeviceGetName") == 1
        assert not is_served()
        assert "cuDeviceGetName" not in list(emulation.calls())


def test_another_device_is_left_alone(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    with (
        emulation.called("another GPU", 1),
        ptac.enable(FUSION, calibration=path),
    ):
        assert not is_served(device="cuda:0")
        assert is_served(device="cuda:1")
        line = ptac.status()[FUSION]["cuda_table"]
        assert line == f"{path}, of {_C.cuda_name(0)}; not for 1 (another GPU)"
        assert f"{path} is of {_C.cuda_name(0)}: it decides nothing on 1" in (
            ptac.report()
        )


def test_two_devices_of_a_kind(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1))
    with ptac.enable(FUSION, calibration=path):
        assert not is_served(device="cuda:1")
        assert not is_served(device="cuda:0")


def test_a_table_of_nothing_that_is_here(tmp_path: Path) -> None:
    path = table(tmp_path, SLOWER.format(work=1), device="a GPU of elsewhere")
    with ptac.enable(FUSION, calibration=path):
        assert is_served()
        assert "; not for 0 (" in ptac.status()[FUSION]["cuda_table"]


def test_a_table_of_the_cpu_decides_nothing_here(tmp_path: Path) -> None:
    path = tmp_path / "cpu.csv"
    line = "max_pool2d,nchw,float32,1,1,scalar,0.5,80.0"
    path.write_text(",".join(calibration.COLUMNS) + f"\n{line}\n")
    with ptac.enable(FUSION, calibration=path):
        assert is_served()
        assert ptac.status()[FUSION]["cuda_table"] == "none"


def test_the_cpu_keeps_its_own_table(tmp_path: Path) -> None:
    with ptac.enable(FUSION):
        own = json.loads(ptac.report("json"))["versions"]
    assert "calibration_cuda" not in own
    path = table(tmp_path, SLOWER.format(work=1))
    with ptac.enable(FUSION, calibration=path):
        versions = json.loads(ptac.report("json"))["versions"]
        assert versions["calibration"] == own["calibration"]
        assert versions["calibration_cuda"] == f"{path}, of {_C.cuda_name(0)}"
        assert f"; on CUDA {path}, of " in ptac.report()
        assert ptac.status()[FUSION]["cuda_table"] == f"{path}, of {_C.cuda_name(0)}"


def test_an_operator_that_is_nowhere_faster_is_still_overridden(tmp_path: Path) -> None:
    """Other devices, and what was not measured, may be called."""
    path = table(tmp_path, SLOWER.format(work=1))
    with ptac.enable(FUSION, calibration=path):
        assert "cuda:max_pool2d" in _C.override_installed()


def test_times_are_estimated(tmp_path: Path) -> None:
    path = table(tmp_path, FASTER.format(work=128), SLOWER.format(work=512))
    with ptac.enable(FUSION, calibration=path):
        before = _C.estimates("max_pool2d")
        assert is_served(SMALL)
        assert not is_served(LARGE)
        after = _C.estimates("max_pool2d")
    gained = [b - a for a, b in zip(before, after, strict=True)]
    assert gained == pytest.approx([80e3, 80e3 * (1 - 1 / 1.5), 80e3])


def test_rows_and_operators_of_another_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [
        SLOWER.format(work=1).replace("cuda,", "cuda_9,"),
        SLOWER.format(work=2).replace("max_pool2d", "conv9d"),
        SLOWER.format(work=3).replace("nchw", "nchw_of_old"),
    ]
    path = table(tmp_path, *lines)
    with ptac.enable(FUSION, calibration=path):
        assert is_served()
    expected = f"{path}: operators unknown here are left out: conv9d"
    assert caplog.messages[-1:] == [expected]


GOOD = SLOWER.format(work=64)


@pytest.mark.parametrize(
    ("lines", "number"),
    [
        ([GOOD, GOOD], 4),
        ([GOOD.replace("0.5", "-2.0")], 3),
        ([GOOD.replace(",64,", ",x,")], 3),
        ([GOOD.replace(",64,", ",1,64,")], 3),
        (["max_pool2d"], 3),
    ],
)
def test_a_broken_line(lines: list[str], number: int, tmp_path: Path) -> None:
    path = table(tmp_path, *lines)
    with pytest.raises(ValueError, match=rf"{path}, line {number}: .*measure"):
        ptac.enable(FUSION, calibration=path)
    assert not ptac.is_enabled(FUSION)


def test_a_table_that_names_no_device(tmp_path: Path) -> None:
    path = tmp_path / "gpu.csv"
    for head in ("", calibration.DEVICE + "\n"):
        path.write_text(f"{head}{','.join(calibration.CUDA_COLUMNS)}\n{GOOD}\n")
        with pytest.raises(ValueError, match="lacks the line # device: NAME"):
            ptac.enable(FUSION, calibration=path)
