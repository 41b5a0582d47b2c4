"""The CUDA pool's engine on a mock of the driver: real memory, late streams, no device.

``cuda_mock.h`` says what the mock enforces; the units beside it are C.
"""

from __future__ import annotations

import os
from pathlib import Path

import native
import pytest

MOCK = ("cuda_mock", "cuda_mock_streams")
UNITS = ("cuda_source_units", "cuda_stream_units", "cuda_random_units")
HELPERS = ("cuda_close", "random", "unit")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("cuda"))


def build_units(builder: native.Builder, sanitize: str | None = None) -> Path:
    stems = (*MOCK, *UNITS, *HELPERS)
    sources = native.shipped_sources("mem", "device")
    sources += [native.CSRC / "core" / "base.c", *native.test_sources(*stems)]
    # The program is its own driver: dlopen(NULL) has to find the mock's functions.
    link = ("-rdynamic", "-ldl")
    return builder.program("cuda", sources, sanitize=sanitize, link=link)


def test_units(builder: native.Builder) -> None:
    print(native.run([str(build_units(builder))]))


def test_units_under_address_sanitizer(builder: native.Builder) -> None:
    builder.sanitized("address")
    print(native.run([str(build_units(builder, "address"))]))


def test_prototypes_are_the_toolkits() -> None:
    places = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    headers = [Path(p, "include", "cuda.h") for p in places if p]
    found = [h for h in headers if h.exists()]
    if not found:
        pytest.skip(f"no CUDA toolkit: looked for {', '.join(map(str, headers))}")
    guard = native.TESTS / "device" / "cuda_guard.c"
    folders = [f"-I{native.CSRC}", f"-I{found[0].parent}"]
    flags = ["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only"]
    native.run([native.CC, *flags, *folders, str(guard)])
