"""Linear layers, quantized ones too, on an emulated CUDA device and cuBLASLt."""

from __future__ import annotations

from pathlib import Path

import native
import pytest

STAND_INS = (
    *("emulator", "emulated_kernels", "emulated_driver"),
    *("emulated_lt", "emulated_lt_checks"),
)
INT8 = ("int8_linear.c", "int8_ref.c", "panel.c")
"""The CPU's row "scalar", whose bits those of CUDA are."""

HELPERS = ("arena", "emulated_lt_math", "faults", "matrices", "random", "unit")


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("linearcuda"))


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    ops, units = native.CSRC / "ops", native.TESTS / "ops"
    sources = native.shipped_sources("core", "device")
    sources += [ops / "int8" / name for name in INT8]
    for family in ("int8", "linear"):
        sources += sorted((ops / family / "cuda").glob("*.c*"))
        sources += sorted((units / family / "cuda").glob("*_units.c"))
    sources += native.test_sources(*STAND_INS, *HELPERS)
    # The program is its own cuBLASLt: dlopen(NULL) has to find the stand-in.
    link = ("-rdynamic", "-ldl")
    return builder.program("linearcuda", sources, sanitize=sanitize, link=link)


def test_units(builder: native.Builder) -> None:
    print(native.run([str(build(builder))]))


@pytest.mark.long
def test_units_under_address_sanitizer(builder: native.Builder) -> None:
    """And its checks of undefined behaviour."""
    print(native.run([str(build(builder, builder.sanitized("address")))]))


@pytest.mark.long
def test_the_table_of_plans_under_thread_sanitizer(builder: native.Builder) -> None:
    program = build(builder, builder.sanitized("thread"))
    print(native.run([str(program), "threads_share_the_table"]))
