"""``device="cuda"``, by devices that are none: each file in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import native
import pytest

HERE = Path(__file__).parent
FILES = sorted(path.name for path in HERE.glob("emulated_*.py"))


@pytest.mark.parametrize("name", FILES)
def test_on_cuda(name: str) -> None:
    paths = [str(native.ROOT), str(native.ROOT / "tests" / "support"), str(HERE)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "emulation"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name)]
    said = native.run(command, env=env, cwd=native.ROOT)
    assert " passed" in said
    assert " skipped" not in said, said
    print(said)
