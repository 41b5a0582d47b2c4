"""Our prototypes of cuBLASLt beside its header and the library, where these are."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import native
import pytest

STAND_IN = ("emulated_lt", "emulated_lt_checks", "emulated_lt_math")

CUDA = [p for p in (os.environ.get("CUDA_HOME"), "/usr/local/cuda") if p]


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("cublaslt"))


def find(name: str, *folders: str) -> Path:
    """A file of a CUDA toolkit's, or of a wheel's; skips the test without one."""
    wheels = [p for entry in sys.path if entry for p in Path(entry).glob("nvidia/*")]
    places = [Path(p) / folder for p in (*wheels, *CUDA) for folder in folders]
    found = [p for place in places for p in sorted(place.glob(name))]
    if not found:
        pytest.skip(
            f"no {name}: neither a wheel nvidia-cublas on sys.path nor a toolkit "
            f"with cuBLAS in {' or '.join(CUDA)}"
        )
    return found[0]


def build_sizes(builder: native.Builder, stand_in: bool) -> Path:
    sources = [native.CSRC / "device" / "cuda" / "cublaslt.c"]
    sources += native.test_sources("lt_sizes")
    if stand_in:
        sources += native.test_sources(*STAND_IN)
    name = "emulated_sizes" if stand_in else "sizes"
    return builder.program(name, sources, link=("-rdynamic", "-ldl"))


def test_prototypes_and_values_are_the_librarys() -> None:
    header = find("cublasLt.h", "include")
    toolkit = find("cuda_runtime_api.h", "include")
    guard = native.TESTS / "device" / "cublaslt" / "lt_guard.c"
    folders = [native.CSRC, toolkit.parent, header.parent]
    flags = ["-std=gnu11", "-Wall", "-Werror", "-fsyntax-only"]
    native.run([native.CC, *flags, *(f"-I{f}" for f in folders), str(guard)])


def test_the_library_takes_our_attributes(builder: native.Builder) -> None:
    library = find("libcublasLt.so.1[23]", "lib", "lib64")
    said = native.run([str(build_sizes(builder, False)), str(library)])
    assert "CUBLAS_STATUS_NOT_SUPPORTED" in said


def test_the_stand_in_takes_the_same(builder: native.Builder) -> None:
    said = native.run([str(build_sizes(builder, True))])
    assert said == "cuBLASLt 130100, CUBLAS_STATUS_NOT_SUPPORTED\n"


def test_what_is_missing_is_named(builder: native.Builder) -> None:
    program = str(build_sizes(builder, False))
    with pytest.raises(AssertionError, match=r"no cuBLASLt: .*libnone\.so\.13"):
        native.run([program, "libnone.so.13"])
    with pytest.raises(AssertionError, match="cuBLASLt lacks cublasLtCreate"):
        native.run([program, "libm.so.6"])
