"""Linear layers on an emulated CUDA device, with a stand-in for cuBLASLt."""

from __future__ import annotations

from pathlib import Path

import native
import pytest

STAND_INS = ("emulator", "emulated_driver", "emulated_lt", "emulated_lt_math")
HELPERS = ("matrices", "random", "unit")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("linearcuda"))


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    rooms = [native.CSRC / "ops" / "linear" / "cuda", native.CSRC / "device" / "cuda"]
    sources = [p for room in rooms for p in sorted(room.glob("*.c*"))]
    sources += native.shipped_sources("core")
    sources += native.test_sources(*STAND_INS, *HELPERS)
    sources += sorted(Path(__file__).parent.glob("*_units.c"))
    # The program is its own cuBLASLt: dlopen(NULL) has to find the stand-in.
    link = ("-rdynamic", "-ldl")
    return builder.program("linearcuda", sources, sanitize=sanitize, link=link)


def test_units(builder: native.Builder) -> None:
    print(native.run([str(build(builder))]))


def test_units_under_address_sanitizer(builder: native.Builder) -> None:
    """And its checks of undefined behaviour."""
    print(native.run([str(build(builder, builder.sanitized("address")))]))


def test_the_table_of_plans_under_thread_sanitizer(builder: native.Builder) -> None:
    program = build(builder, builder.sanitized("thread"))
    print(native.run([str(program), "threads_share_the_table"]))
