"""Tests with ``device="cuda"`` that the emulation runs elsewhere, on a real device."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import native
import pytest

HERE = Path(__file__).parent
EMULATION = HERE.parent / "cuda_emulation"
ALONE = {"linear/emulated_no_cublaslt.py"}
"""What is about the emulation's library, and no device's."""

FILES = sorted(
    {str(path.relative_to(EMULATION)) for path in EMULATION.rglob("emulated_*.py")}
    - ALONE
)


def run(name: str, *plugins: str) -> str:
    """One file in a process of its own; what pytest said."""
    paths = [native.ROOT, native.ROOT / "tests" / "support", HERE / "device", EMULATION]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    command += [word for plugin in plugins for word in ("-p", plugin)]
    said = native.run(
        [*command, "-p", "no:xdist", str(EMULATION / name)], env=env, cwd=native.ROOT
    )
    print(said)
    return said


@pytest.mark.gpu
@pytest.mark.parametrize("name", FILES)
def test_on_a_gpu(name: str) -> None:
    assert re.search(r"\d+ passed", run(name, "emulation"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if "overrides" in name else pytest.mark.long)
        for name in FILES
    ],
)
def test_what_takes_the_emulations_place(name: str) -> None:
    """Enough tests pass by it, none fails: it is what they will meet on a GPU."""
    said = run(name, "emulated_first", "emulation")
    [passed] = re.findall(r"(\d+) passed", said)
    skipped = re.findall(r"SKIPPED \[(\d+)\] .*the emulation alone knows", said)
    assert 2 * int(passed) > sum(map(int, skipped))
