"""The emulation of CUDA on the CPU: it runs what is right, and finds planted faults."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import native
import pytest

RIGHT = "0x1.87eb84p+11 32 128; read 1024, written 24"
"""The sum of 128 numbers, the lanes above zero and the threads; bytes of two blocks."""

FAULTS = {
    2: "faulty.cu:[0-9]+: threads of a block wait at different barriers",
    3: "kernel.h:[0-9]+: a lane reads one that its mask does not name, or that is gone",
    4: "faulty.cu:[0-9]+: a lane waits for lanes that do not come",
    5: "faulty.cu:[0-9]+: a lane's own mask does not name it",
    9: "faulty.cu:[0-9]+: an address that is not aligned",
}
ORDERS = (0, 1, 2, 7)


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> native.Builder:
    return native.Builder(tmp_path_factory.mktemp("emulator"))


def build(builder: native.Builder, sanitize: str | None = None) -> Path:
    sources = native.test_sources("emulator", "faulty", "faulty_main")
    return builder.program("faulty", sources, sanitize=sanitize)


def run(program: Path, fault: int, order: int) -> tuple[int, str]:
    command = [str(program), str(fault), str(order)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, (done.stdout + done.stderr).strip()


def test_what_is_right_is_the_same_in_any_order(builder: native.Builder) -> None:
    assert {run(build(builder), 0, order) for order in ORDERS} == {(0, RIGHT)}


def test_a_missing_barrier_shows(builder: native.Builder) -> None:
    assert len({run(build(builder), 1, order)[1] for order in ORDERS}) > 1


@pytest.mark.parametrize("fault", FAULTS)
def test_misuse_is_named(builder: native.Builder, fault: int) -> None:
    for order in ORDERS:
        status, said = run(build(builder), fault, order)
        assert status < 0
        assert re.search(rf"kernel faulty, block .*{FAULTS[fault]}", said), said


def test_shared_memory_that_nobody_wrote_shows(builder: native.Builder) -> None:
    status, said = run(build(builder), 6, 0)
    assert status == 0
    assert said != RIGHT


def test_sanitizers_see_what_lies_outside(builder: native.Builder) -> None:
    program = build(builder, builder.sanitized("address"))
    assert run(program, 0, 2) == (0, RIGHT)
    for fault in (7, 8):
        status, said = run(program, fault, 0)
        assert status != 0
        assert "AddressSanitizer: heap-buffer-overflow" in said
