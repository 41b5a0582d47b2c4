"""The program that steps by the rows of CUDA."""

from __future__ import annotations

from pathlib import Path

import cuda_steps
import native
import pytest


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("stepcuda"))


@pytest.fixture(scope="module")
def program(builder: native.Builder) -> Path:
    return cuda_steps.build(builder)
