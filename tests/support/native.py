"""Compiling the torch-free C tests with the system's compiler.

Sources and flags are those of setup.py. Without a sanitizer, what lies in csrc is
compiled by the same command: programs are linked from the extension's own objects.
Warnings are errors.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
TESTS = ROOT / "tests" / "csrc"
"""C tests, in folders that mirror those of csrc."""

HEADERS = (
    *("support", "checkrows", "device", "device/cublaslt", "mem/support", "mem/cuda"),
    *("ops/linear", "ops/linear/cuda", "ops/math", "ops/norm", "ops/pool"),
    "ops/softmax",
)
"""Folders of C tests whose headers others include."""

OBJECTS = ROOT / "build" / "objects"
"""Compiled files of all sessions, see tools/objects.py."""

CC = os.environ.get("CC", "cc")
CXX = os.environ.get("CXX", "c++")

CXX_SUFFIXES = (".cc", ".cu")
"""The emulation of CUDA, and the kernels that it runs."""

C_FLAGS = ("-std=gnu11", "-Werror=implicit-function-declaration")

FULL = os.environ.get("PTAC_TEST_FULL") == "1"

TILES = re.compile("avx|amx")
"""Files of unrolled vector code, of which gcc makes gigantic ones with sanitizers."""

QUICK = (
    "-O0",
    "--param=asan-instrumentation-with-call-threshold=0",
    "-fno-sanitize=null,alignment,object-size,pointer-overflow",
)
"""Translates conv_avx2.c with the address sanitizer in 17 s instead of 60 s. make check
has the time to optimize, and for the checks of pointers."""

CAN_AVX512 = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8").split()

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


@cache
def extension_build() -> tuple[Any, list[str]]:
    """setup.py's ``Extension``, and the command that compiles a file of it."""
    from setuptools import Distribution

    with mock.patch("setuptools.setup") as setup:
        runpy.run_path(str(ROOT / "setup.py"))
    [extension] = setup.call_args.kwargs["ext_modules"]
    build_ext = setup.call_args.kwargs["cmdclass"]["build_ext"]
    commands = []

    class Recorder(build_ext):  # type: ignore[misc, valid-type]
        def build_extension(self, ext: Any) -> None:
            commands.append(self.command(ext))

    build = Recorder(Distribution({"ext_modules": [extension]}))
    build.ensure_finalized()
    build.run()
    [command] = commands
    return extension, command


def shipped_sources(*rooms: str) -> list[Path]:
    """The C files of these folders of csrc that the extension is built from."""
    sources = [ROOT / source for source in extension_build()[0].sources]
    return [s for s in sources if s.relative_to(CSRC).parts[0] in rooms]


def run(command: list[str], *, timeout: float = 600, **options: Any) -> str:
    """Run a command; its output. Fails, showing it, where the command does."""
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"exit status {done.returncode} of\n  {shlex.join(command)}\n{done.stdout}"
        )
    return done.stdout


@cache
def _objects(command: tuple[str, ...]) -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from objects import Objects
    finally:
        del sys.path[0]
    return Objects(OBJECTS, ROOT, command)


def shipped_objects() -> Path:
    """The folder of the objects that the extension is linked from."""
    return _objects(tuple(extension_build()[1])).folder


def test_sources(*stems: str) -> list[Path]:
    """The files of these names among the tests, in C or for the emulation."""
    found = {p.stem: p for p in TESTS.rglob("*") if p.suffix in (".c", *CXX_SUFFIXES)}
    return [found[stem] for stem in stems]


@dataclass(frozen=True)
class Builder:
    """Programs of one test session, in a folder of its own."""

    folder: Path

    def program(
        self,
        name: str,
        sources: list[Path],
        *,
        sanitize: str | None = None,
        link: tuple[str, ...] = (),
    ) -> Path:
        """Build a program from C sources; what has not changed is not compiled."""
        compiled = _compiled((_command(s, sanitize), s) for s in sources)
        program = self.folder / f"{name}-{sanitize or 'plain'}"
        options = SANITIZERS.get(sanitize or "", ())
        inputs = (*options, *map(str, compiled), *link, "-lm")
        linker = CXX if any(s.suffix in CXX_SUFFIXES for s in sources) else CC
        run([linker, "-pthread", *inputs, "-o", str(program)])
        return program

    def library(
        self,
        path: Path,
        sources: list[Path],
        *,
        command: list[str] | None = None,
        link: tuple[str, ...] = (),
    ) -> None:
        """Build a shared library, known by its file's name, by this command or ours."""
        compiled = _compiled((tuple(command or _command(s, None)), s) for s in sources)
        inputs = (*map(str, compiled), *link, f"-Wl,-soname,{path.name}")
        run([CXX, "-shared", "-pthread", *inputs, "-o", str(path)])

    @cache  # noqa: B019 - a session has one builder
    def sanitized(self, sanitize: str) -> str:
        """Skip the test where programs with this sanitizer cannot be run; its name."""
        source = self.folder / "empty.c"
        program = self.folder / f"empty-{sanitize}"
        source.write_text("int main(void) { return 0; }\n")
        try:
            run([CC, *SANITIZERS[sanitize], str(source), "-o", str(program)])
            run([str(program)], timeout=60)
        except AssertionError as error:
            pytest.skip(f"no {sanitize} sanitizer: {error}")
        return sanitize


def _compiled(sources: Iterable[tuple[tuple[str, ...], Path]]) -> list[Path]:
    """The object of each source, by its command. Warnings are errors."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for command, source in sources:
        groups.setdefault(command, []).append(source)
    compiled: list[Path] = []
    for command, group in groups.items():
        objects = _objects(command)
        compiled += objects.compile(group)
        if said := objects.warnings(group):
            raise AssertionError(said)
    return compiled


def _command(source: Path, sanitize: str | None) -> tuple[str, ...]:
    """What compiles this source: where nothing differs, as it is shipped."""
    extension, shipped = extension_build()
    is_shipped = source.is_relative_to(CSRC) and source.suffix == ".c"
    if is_shipped and not (sanitize and _can_run(source)):
        return tuple(shipped)
    is_cxx = source.suffix in CXX_SUFFIXES
    # As setuptools adds for what is shipped: libraries and programs have one object.
    flags = [*extension.extra_compile_args, "-Werror", "-fPIC"]
    if is_cxx:
        flags = [f for f in flags if f not in C_FLAGS] + ["-std=c++17", "-x", "c++"]
    flags += [f"-I{folder}" for folder in extension.include_dirs]
    flags += [f"-Itests/csrc/{folder}" for folder in HEADERS]
    if sanitize:
        is_quick = bool(TILES.search(source.stem)) and not FULL
        flags += ["-O1", "-DPTAC_DEBUG", "-fno-omit-frame-pointer"]
        flags += [*SANITIZERS[sanitize], *(QUICK if is_quick else ())]
    return (CXX if is_cxx else CC, *flags)


def _can_run(source: Path) -> bool:
    """Whether this CPU runs the file; gcc takes longest for those it would not run."""
    return CAN_AVX512 or "avx512" not in source.stem
