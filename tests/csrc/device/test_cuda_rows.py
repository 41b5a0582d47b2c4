"""The rows of CUDA against the operators' row "scalar", their kernels emulated."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import native
import pytest

sys.path.insert(0, str(native.TESTS))
try:
    from test_rows import DRIVER, SEED, generators
finally:
    del sys.path[0]

CASES = int(os.environ.get("PTAC_TEST_CASES", "300")) // 3


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("cudarows"))


def kernels() -> list[Path]:
    return sorted((native.CSRC / "ops").rglob("*.cu"))


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    sources = native.shipped_sources("core", "device", "ops")
    sources += native.test_sources(*DRIVER, "emulator", "emulated_driver")
    sources += [*generators(), *kernels()]
    link = ("-ldl",)
    return builder.program("cudarows", sources, sanitize=sanitize, link=link)


def test_rows(builder: native.Builder) -> None:
    command = [str(build(builder)), "--seed", SEED, "--cases", str(CASES)]
    print(native.run(command, timeout=300 + CASES))
