"""The torch-free C tests of the memory pool's engine.

``engine/fuzz.c`` does ``PTAC_TEST_OPERATIONS`` random operations (default a
million, ten with ``PTAC_TEST_FULL``) from ``PTAC_TEST_SEED`` on, beside a model. The
units refuse every call of the system in turn, fork in the middle of requests, and move
the clock by hand. ``PTAC_TEST_CGROUP`` names a memory control group for one of them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import native
import pytest

USUAL = "10000000" if os.environ.get("PTAC_TEST_FULL") == "1" else "1000000"
OPERATIONS = int(os.environ.get("PTAC_TEST_OPERATIONS", USUAL))
SEED = os.environ.get("PTAC_TEST_SEED", "1")

MEMORY_TESTS = native.TESTS / "mem"
MODEL = ("fuzz", "reference_model", "invariants", "checked_source", "random")
HELPERS = (
    "calls",
    "files",
    "fixture",
    "invariants",
    "random",
    "replay",
    "test_got",
    "unit",
)
WRAPPED = tuple(
    f"-Wl,--wrap={function}"
    for function in (
        *("calloc", "madvise", "malloc", "mmap", "mprotect", "munmap", "nanosleep"),
        *("open", "pthread_create", "qsort", "realloc", "sysconf"),
    )
)

# How a library may be linked against libc; see got_user.c.
LINKED = {
    "lazy": ("-Wl,-z,lazy", "-Wl,-z,norelro"),
    "relro": ("-Wl,-z,lazy", "-Wl,-z,relro"),
    "now": ("-Wl,-z,relro,-z,now",),
    "no-plt": ("-fno-plt", "-Wl,-z,relro,-z,now"),
    "addresses": ("-DWITH_ADDRESSES", "-Wl,-z,relro,-z,now"),
    "addresses-lazy": ("-DWITH_ADDRESSES", "-Wl,-z,lazy", "-Wl,-z,norelro"),
}


def engine() -> list[Path]:
    return native.shipped_sources("core", "device", "mem")


def build_fuzz(builder: native.Builder, sanitize: str | None = None) -> Path:
    sources = [*engine(), *native.test_sources(*MODEL)]
    return builder.program("fuzz", sources, sanitize=sanitize)


def build_units(builder: native.Builder, sanitize: str | None = None) -> Path:
    sources = [
        *engine(),
        native.CSRC / "bind" / "abi" / "got.c",
        *native.test_sources(*HELPERS),
        *sorted(MEMORY_TESTS.rglob("test_*.c")),
    ]
    return builder.program("memory-units", sources, sanitize=sanitize, link=WRAPPED)


def fuzz(program: Path, operations: int) -> None:
    command = [str(program), "--seed", SEED, "--operations", str(operations)]
    print(native.run(command, timeout=300 + operations / 50_000))


def test_nothing_comes_from_the_heap() -> None:
    """A lock is held nearly everywhere, and it may be the heap that is replaced."""
    heap = re.compile(r"\b(malloc|calloc|realloc|free|strdup|qsort)\([^)]")
    sources = native.shipped_sources("mem")
    assert len(sources) > 20
    assert not [s.name for s in sources if heap.search(s.read_text())]


def test_random_operations(builder: native.Builder) -> None:
    fuzz(build_fuzz(builder), OPERATIONS)


def test_random_operations_under_address_sanitizer(builder: native.Builder) -> None:
    fuzz(build_fuzz(builder, builder.sanitized("address")), OPERATIONS // 4)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Libraries that import what the pool hooks, one for each way of linking."""
    folder = tmp_path_factory.mktemp("libraries")
    [source] = map(str, native.test_sources("got_user"))
    for name, flags in LINKED.items():
        target = str(folder / f"{name}.so")
        native.run([native.CC, "-shared", "-fPIC", "-O1", *flags, source, "-o", target])
    return ":".join(str(folder / f"{name}.so") for name in LINKED)


def run_units(
    program: Path, *names: str, libraries: str = "", tmp_path: Path | None = None
) -> None:
    environment = {**os.environ, "PTAC_TEST_LIBRARIES": libraries}
    if tmp_path:
        environment["TMPDIR"] = str(tmp_path)
    print(native.run([str(program), *names], env=environment))


def test_units(builder: native.Builder, libraries: str, tmp_path: Path) -> None:
    run_units(build_units(builder), libraries=libraries, tmp_path=tmp_path)


def test_units_under_address_sanitizer(
    builder: native.Builder,
    libraries: str,
    tmp_path: Path,
) -> None:
    program = build_units(builder, builder.sanitized("address"))
    run_units(program, libraries=libraries, tmp_path=tmp_path)


def test_threads_under_thread_sanitizer(builder: native.Builder) -> None:
    """Those that do not fork, which this sanitizer cannot follow."""
    program = build_units(builder, builder.sanitized("thread"))
    names = re.findall(
        r"UNIT\((\w+)\)", (MEMORY_TESTS / "cpu" / "test_threads.c").read_text()
    )
    run_units(program, *names)
