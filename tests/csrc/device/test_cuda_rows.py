"""The rows of CUDA against the operators' row "scalar", their kernels emulated."""

from __future__ import annotations

from pathlib import Path

import checkrows
import native
import pytest


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("cudarows"))


def kernels() -> list[Path]:
    return sorted((native.CSRC / "ops").rglob("*.cu"))


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    sources = native.shipped_sources("core", "device", "ops")
    sources += native.test_sources(
        *checkrows.DRIVER, "emulator", "emulated_kernels", "emulated_driver"
    )
    sources += [*checkrows.generators(), *kernels()]
    return builder.program("cudarows", sources, sanitize=sanitize, link=("-ldl",))


def test_rows(builder: native.Builder) -> None:
    checkrows.run(build(builder), checkrows.CASES // 3)


@pytest.mark.long
def test_rows_under_address_sanitizer(builder: native.Builder) -> None:
    """And its checks of undefined behaviour: lanes out of bounds, wrong alignment."""
    program = build(builder, builder.sanitized("address"))
    checkrows.run(program, checkrows.CASES // 6)
