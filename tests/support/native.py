"""Compiling the torch-free C tests with the system's compiler.

Flags and sources are those of setup.py, so the tests see the code as it is shipped,
but with warnings as errors.
"""

from __future__ import annotations

import os
import runpy
import shlex
import subprocess
import sys
import types
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[2]
CSRC = ROOT / "csrc"
TESTS = ROOT / "tests" / "csrc"
"""C tests, in folders that mirror those of csrc."""

HEADERS = (
    *("support", "checkrows", "mem/support", "mem/cuda"),
    *("ops/linear", "ops/math", "ops/pool", "ops/softmax"),
)
"""Folders of C tests whose headers others include."""

OBJECTS = ROOT / "build" / "objects"
"""Compiled files of all sessions, see tools/objects.py."""

CC = os.environ.get("CC", "cc")
CXX = os.environ.get("CXX", "c++")

SANITIZERS = {
    "address": ("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "thread": ("-fsanitize=thread",),
}


@cache
def extension_build() -> dict[str, Any]:
    """The arguments of setup.py's ``Extension``, without building anything."""
    seen: dict[str, Any] = {}

    def record(name: str, sources: list[str], **options: Any) -> object:
        seen.update(name=name, sources=sources, **options)
        return object()

    stand_in = types.ModuleType("setuptools")
    stand_in.Extension = record  # type: ignore[attr-defined]
    stand_in.setup = lambda **_: None  # type: ignore[attr-defined]
    build_ext = types.ModuleType("setuptools.command.build_ext")
    build_ext.build_ext = object  # type: ignore[attr-defined]
    modules = {"setuptools": stand_in, build_ext.__name__: build_ext}
    with mock.patch.dict(sys.modules, modules):
        runpy.run_path(str(ROOT / "setup.py"))
    return seen


def shipped_sources(*rooms: str) -> list[Path]:
    """The C files of these folders of csrc that the extension is built from."""
    sources = [ROOT / source for source in extension_build()["sources"]]
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
def _objects(flags: tuple[str, ...]) -> Any:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from objects import Objects
    finally:
        del sys.path[0]
    return Objects(OBJECTS, ROOT, [CC, *flags])


def test_sources(*stems: str) -> list[Path]:
    """The C files of these names among the tests."""
    found = {p.stem: p for p in TESTS.rglob("*.c")}
    return [found[stem] for stem in stems]


@dataclass
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
        flags = self._flags(sanitize)
        objects = _objects(flags).compile(sources)
        program = self.folder / f"{name}-{sanitize or 'plain'}"
        run([CC, *flags, *map(str, objects), *link, "-lm", "-o", str(program)])
        return program

    def lacks(self, sanitize: str) -> str | None:
        """Why programs with this sanitizer cannot be run here, or None."""
        source = self.folder / "empty.c"
        program = self.folder / f"empty-{sanitize}"
        source.write_text("int main(void) { return 0; }\n")
        flags = SANITIZERS[sanitize]
        try:
            run([CC, *flags, str(source), "-o", str(program)])
            run([str(program)], timeout=60)
        except AssertionError as error:
            return f"no {sanitize} sanitizer: {error}"
        return None

    def _flags(self, sanitize: str | None) -> tuple[str, ...]:
        build = extension_build()
        flags = [*build["extra_compile_args"], "-Werror", "-g"]
        flags += [f"-I{folder}" for folder in build["include_dirs"]]
        flags += [f"-Itests/csrc/{folder}" for folder in HEADERS]
        if sanitize:
            flags += ["-O1", "-DPTAC_DEBUG", "-fno-omit-frame-pointer"]
            flags += SANITIZERS[sanitize]
        return tuple(flags)
