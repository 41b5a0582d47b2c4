"""tools/gpu.sh, which a machine with a GPU runs: here, and with stages that fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import native
import pytest
import torch

SCRIPT = native.ROOT / "tools" / "gpu.sh"
STAGES = ("environment", "build", "tests", "memcheck", "racecheck", "benchmarks")

FAKE = """#!/bin/sh
echo "$@" >>{calls}
case "$*" in {cases} esac
"""
"""An interpreter that only notes what it is asked for."""


def run(*words: str, **variables: str) -> tuple[int, list[str]]:
    """The exit status, and the script's own lines."""
    done = subprocess.run(
        [str(SCRIPT), *words],
        env={**os.environ, "PYTHON": sys.executable, **variables},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    own = [x for x in done.stdout.splitlines() if x.startswith("gpu.sh: ")]
    return done.returncode, [x.removeprefix("gpu.sh: ") for x in own]


def fake(folder: Path, cases: str) -> dict[str, str]:
    """Variables by which an interpreter of ours is asked; a sanitizer is there."""
    python, sanitizer = folder / "python", folder / "compute-sanitizer"
    python.write_text(FAKE.format(calls=folder / "calls", cases=cases))
    sanitizer.write_text('#!/bin/sh\necho sanitized >>"$0".calls\n')
    for file in (python, sanitizer):
        file.chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return {"PYTHON": str(python), "PATH": path}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    """And what needs none runs: environment."""
    stages = "environment", "racecheck", "benchmarks"
    status, lines = run(str(tmp_path), *stages)
    assert status == 0
    begun = [x.split()[0] for x in lines if " begins, " in x]
    assert begun == list(stages)
    assert lines[1].startswith("environment ends after")
    assert lines[1].endswith("passed")
    assert lines[3].startswith("racecheck ends: nothing to do: no ")
    assert lines[5] == "benchmarks ends: nothing to do: no CUDA device"
    assert lines[6] == f"nothing failed; results are in {tmp_path}"
    text = (tmp_path / "environment.log").read_text()
    assert f"torch {torch.__version__}" in text
    assert "operators on CUDA: none: " in text
    assert "units with" in text


def test_a_stage_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    variables = fake(tmp_path, "*pytest*-m\\ gpu*) exit 3;;")
    status, lines = run(OUT=str(tmp_path / "out"), **variables)
    assert status == 1
    assert [x.split()[0] for x in lines if " begins, " in x] == list(STAGES)
    ends = {x.split()[0]: x for x in lines if " ends after " in x}
    assert ends.pop("tests").endswith("failed with status 3")
    assert set(ends) == set(STAGES) - {"tests"}
    assert all(line.endswith("passed") for line in ends.values())
    assert lines[-1] == f"failed: tests; results are in {tmp_path / 'out'}"
    assert (tmp_path / "compute-sanitizer.calls").read_text() == "sanitized\n" * 2
    calls = (tmp_path / "calls").read_text()
    assert "setup.py -q build_ext --inplace" in calls
    assert "benchmarks gpu --budget 130 --csv" in calls


def test_a_package_that_is_not_there_fails_the_build(tmp_path: Path) -> None:
    variables = fake(tmp_path, "*setup.py*|*gpu.machine*) exit 1;;")
    status, lines = run(str(tmp_path), "build", **variables)
    assert status == 1
    assert lines[-1] == f"failed: build; results are in {tmp_path}"


def test_a_build_that_fails_is_not_what_was_built_before(tmp_path: Path) -> None:
    variables = fake(tmp_path, "*setup.py*) exit 1;;")
    status, lines = run(str(tmp_path), "build", **variables)
    assert status == 1
    assert lines[-1] == f"failed: build; results are in {tmp_path}"


def test_a_torch_that_fails_is_not_a_missing_device(tmp_path: Path) -> None:
    variables = fake(tmp_path, "*torch.cuda.is_available*) exit 1;;")
    stages = "tests", "racecheck", "benchmarks"
    status, lines = run(str(tmp_path), *stages, **variables)
    assert status == 1
    assert lines[-1] == f"failed: {' '.join(stages)}; results are in {tmp_path}"


def test_limits_come_to_less_than_ten_minutes() -> None:
    [line] = [x for x in SCRIPT.read_text().splitlines() if x.startswith("STAGES=")]
    words = line.partition('"')[2].strip('"').split()
    assert [word.split(":")[0] for word in words] == list(STAGES)
    assert sum(int(word.split(":")[1]) for word in words) < 600


def test_stages_that_are_none() -> None:
    status, [line] = run("", "speed", OUT="/tmp")
    assert status == 2
    assert line.startswith("no stage is named speed; there are: environment:")


def test_it_is_clean() -> None:
    if shutil.which("shellcheck") is None:
        native.run(["bash", "-n", str(SCRIPT)])
        pytest.skip("no shellcheck; bash finds no fault in its syntax")
    native.run(["shellcheck", str(SCRIPT)])
