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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
CSRC = ROOT / "csrc"
CORE_TESTS = ROOT / "tests" / "core"

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
    with mock.patch.dict(sys.modules, setuptools=stand_in):
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


@dataclass
class Builder:
    """Objects and programs of one test session, in a folder of its own."""

    folder: Path
    _objects: dict[tuple[Path, tuple[str, ...]], Path] = field(default_factory=dict)

    def program(
        self,
        name: str,
        sources: list[Path],
        *,
        sanitize: str | None = None,
        link: tuple[str, ...] = (),
    ) -> Path:
        """Build a program from C sources; each is compiled once a session."""
        flags = self._flags(sanitize)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(lambda s: self._object(s, flags), sources))
        program = self.folder / f"{name}-{sanitize or 'plain'}"
        run([CC, *flags, *map(str, objects), *link, "-lm", "-o", str(program)])
        return program

    def lacks(self, sanitize: str) -> str | None:
        """Why programs with this sanitizer cannot be run here, or None."""
        source = self.folder / "empty.c"
        source.write_text("int main(void) { return 0; }\n")
        try:
            run([str(self.program("empty", [source], sanitize=sanitize))], timeout=60)
        except AssertionError as error:
            return f"no {sanitize} sanitizer: {error}"
        return None

    def _flags(self, sanitize: str | None) -> tuple[str, ...]:
        build = extension_build()
        flags = [*build["extra_compile_args"], "-Werror", "-g"]
        flags += [f"-I{ROOT / folder}" for folder in build["include_dirs"]]
        flags += [f"-I{CORE_TESTS}"]
        if sanitize:
            flags += ["-O1", "-fno-omit-frame-pointer", *SANITIZERS[sanitize]]
        return tuple(flags)

    def _object(self, source: Path, flags: tuple[str, ...]) -> Path:
        key = (source, flags)
        if key not in self._objects:
            target = self.folder / f"{len(self._objects)}-{source.stem}.o"
            self._objects[key] = target
            run([CC, *flags, "-c", str(source), "-o", str(target)])
        return self._objects[key]
