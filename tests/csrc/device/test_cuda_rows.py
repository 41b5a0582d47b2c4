"""The rows of CUDA against the operators' row "scalar", their kernels emulated."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import checkrows
import native
import pytest


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("cudarows"))


def kernels() -> list[Path]:
    return sorted((native.CSRC / "ops").rglob("*.cu"))


# What checkrows has to say of each row of faulty_rows.c, counting or not.
FAULTS = {
    "allocates": "the row called cuMemCreate",
    "clears_its_output": "output 0 belongs to the device: only kernels may touch it",
    "launches_twice": "took 2 launches where 1 are allowed",
    "looks_at_the_first_input": "input 0 belongs to the device",
    "moves_more": "read .* bytes, where the call needs",
    "rounds_wrongly": r"narrowed to b?float16\n(.*\n)*  output 0 of b?float16, element",
    "takes_nothing_typical": "took no typical call",
    "waits": "the row called cuCtxSynchronize",
}
COUNTED = {"launches_twice", "moves_more", "takes_nothing_typical"}


def build(builder: native.Builder, sanitize: str | None = None, *also: str) -> Path:
    sources = native.shipped_sources("core", "device", "ops")
    sources += native.test_sources(
        *checkrows.DRIVER, "emulator", "emulated_kernels", "emulated_driver", *also
    )
    sources += [*checkrows.generators(), *kernels()]
    name = also[0] if also else "cudarows"
    return builder.program(name, sources, sanitize=sanitize, link=("-ldl",))


def test_rows(builder: native.Builder) -> None:
    checkrows.run(build(builder), checkrows.CASES // 10)


@pytest.mark.long
def test_rows_on_many_calls(builder: native.Builder) -> None:
    checkrows.run(build(builder), checkrows.CASES)


def test_what_rows_move_and_launch(builder: native.Builder) -> None:
    """The bytes that a call needs, each once or as its generator says, and 10 %."""
    said = native.run([str(build(builder)), "--count"])
    print(said)
    assert re.search(r"times \d+ bytes, .*max_pool2d row cuda, .* of float16", said)


def failure_of(builder: native.Builder, fault: str, *arguments: str) -> str:
    """What checkrows says where a row has this fault, and then the emulation."""
    program = build(builder, None, "faulty_rows", "faulty_kernels")
    done = subprocess.run(
        [str(program), *arguments],
        env={**os.environ, "PTAC_BAD_ROW": fault},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout
    return done.stdout + done.stderr


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_faults_are_found(builder: native.Builder, fault: str) -> None:
    how = ["--count"] if fault in COUNTED else ["--cases", "100"]
    said = failure_of(builder, fault, "--op", "max_pool2d", *how)
    assert re.search(rf"max_pool2d row bad(.*\n)*.*{FAULTS[fault]}", said), said


@pytest.mark.parametrize("fault", ["index_below", "index_beyond"])
@pytest.mark.parametrize("operator", ["cross_entropy", "cross_entropy_backward"])
def test_indices_out_of_range_stop_the_device(
    builder: native.Builder, operator: str, fault: str
) -> None:
    """As an assertion of stock's does; nobody could wait to tell Python."""
    said = failure_of(builder, fault, "--op", operator, "--cases", "20")
    assert re.search(rf"kernel {operator}_.*the kernel stops the device", said), said
    assert f"FAIL {operator} row bad" in said


@pytest.mark.long
def test_rows_under_address_sanitizer(builder: native.Builder) -> None:
    """And its checks of undefined behaviour: lanes out of bounds, wrong alignment."""
    program = build(builder, builder.sanitized("address"))
    checkrows.run(program, checkrows.CASES // 6)
