"""``device="cuda"``, by devices that are none: each file in a process of its own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import native
import pytest

HERE = Path(__file__).parent
FILES = sorted(str(path.relative_to(HERE)) for path in HERE.rglob("emulated_*.py"))


@pytest.mark.parametrize("name", FILES)
def test_on_cuda(name: str) -> None:
    run(name)


def test_boxed_on_cuda() -> None:
    """As where we cannot find where torch keeps the address of a C++ kernel."""
    run("emulated_norms.py", PTAC_EMULATION_HIDES="c10_find_operator")


def run(name: str, *options: str, **variables: str) -> None:
    paths = [str(native.ROOT), str(native.ROOT / "tests" / "support"), str(HERE)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    env.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "emulation"]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / name), *options]
    said = native.run(command, env=env, cwd=native.ROOT)
    assert " passed" in said
    assert " skipped" not in said, said
    print(said)
