"""What the package brings of its CUDA kernels: their sources, and machine code.

A unit is a ``.cu`` file of csrc/ops. Where nvcc is found each becomes a fat binary;
without it the sources alone are shipped, which NVRTC compiles when they are needed.
``PTAC_NVCC`` names the compiler to take, or is 0 for none.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from objects import CompileError, Objects

ARCHITECTURES = (80, 90, 100)
"""Machine code is for these, and PTX, which drivers translate, for the last."""

FLAGS = ("-std=c++17", "-fmad=false", "-Icsrc")
"""No contraction of multiplications and additions: what kernels compute is written."""

EMULATION = "device/cuda/emulate.h"
"""Included by g++ only."""

SCHEMA = 1


@dataclass(frozen=True)
class Unit:
    """A ``.cu`` file, and the headers that it includes, also by others."""

    source: Path
    headers: tuple[str, ...]

    @property
    def name(self) -> str:
        """As ``PTAC_CUDA_UNIT`` has it."""
        return self.source.stem


def units(root: Path) -> list[Unit]:
    """All units of the tree."""
    csrc = root / "csrc"
    return [Unit(s, _closure(csrc, s)) for s in sorted(csrc.glob("ops/**/*.cu"))]


def _closure(csrc: Path, source: Path) -> tuple[str, ...]:
    found: dict[str, None] = {}
    waiting = [source]
    while waiting:
        text = waiting.pop().read_text(encoding="utf-8")
        for name in re.findall(r'^\s*#\s*include "([^"]+)"', text, re.M):
            if name not in found and name != EMULATION:
                found[name] = None
                waiting.append(csrc / name)
    return tuple(sorted(found))


class Nvcc:
    """A compiler, as far as the build asks it."""

    def __init__(self, path: str):
        self.path = path
        said = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True
        ).stdout
        found = re.search(r"release (\d+)\.(\d+)", said)
        if not found:
            raise OSError(f"{path} does not tell its version: {said.strip()}")
        self.version = int(found[1]), int(found[2])
        listed = subprocess.run(
            [path, "--list-gpu-code"], capture_output=True, text=True, check=True
        ).stdout
        known = {int(n) for n in re.findall(r"sm_(\d+)$", listed, re.M)}
        self.architectures = [a for a in ARCHITECTURES if a in known]
        if not self.architectures:
            raise OSError(f"{path} knows none of sm_{ARCHITECTURES}")

    def fat_binary(self) -> list[str]:
        """The command for one; it says for each kernel what it takes."""
        last = self.architectures[-1]
        code = {a: f"sm_{a}" for a in self.architectures}
        code[last] = f"[sm_{last},compute_{last}]"
        wanted = [f"-gencode=arch=compute_{a},code={c}" for a, c in code.items()]
        small = ["-compress-mode=size"] if self.version >= (13, 0) else []
        return [self.path, *FLAGS, "-Xptxas=-v", *small, *wanted]

    def fat_binaries(self, root: Path, cache: Path) -> Objects:
        """Those that are there already, and what makes the others."""
        command = self.fat_binary()
        return Objects(cache, root, command, kind="-fatbin", is_quiet=True)


def find_nvcc() -> Nvcc | None:
    """The compiler that ``PTAC_NVCC`` names, else the first of the usual places.

    Those are the search path, ``CUDA_HOME``, /usr/local/cuda, and the wheel
    nvidia-cuda-nvcc where this Python has it.
    """
    named = os.environ.get("PTAC_NVCC")
    if named == "0":
        return None
    if named:
        return Nvcc(named)
    homes = [os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [Path(home, "bin", "nvcc") for home in homes if home]
    for folder in filter(None, sys.path):
        places += Path(folder).glob("nvidia/cu*/bin/nvcc")
    found = shutil.which("nvcc") or next((str(p) for p in places if p.is_file()), None)
    return Nvcc(found) if found else None


def ship(root: Path, cache: Path, folder: Path) -> None:
    """Write into ``folder`` what the package brings."""
    csrc, made = root / "csrc", units(root)
    names = {n: csrc / n for u in made for n in u.headers}
    names |= {str(u.source.relative_to(csrc)): u.source for u in made}
    texts = {n: path.read_text(encoding="utf-8") for n, path in sorted(names.items())}
    nvcc, binaries = _compiled(root, cache, made)
    content = {
        "schema": SCHEMA,
        "nvcc": nvcc and {"version": nvcc.version, "command": nvcc.fat_binary()[1:]},
        "machine_code": nvcc.architectures if nvcc else [],
        "ptx": nvcc.architectures[-1] if nvcc else None,
        "units": {
            u.name: {
                "source": str(u.source.relative_to(csrc)),
                "headers": u.headers,
                "fat_binary": _hash(binaries[u.name]) if u.name in binaries else None,
            }
            for u in made
        },
        "texts": texts,
    }
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"kernels.json"}
    for name, binary in binaries.items():
        kept.add(f"{name}.fatbin")
        _write(folder / f"{name}.fatbin", binary)
    _write(folder / "kernels.json", json.dumps(content, indent=1).encode())
    for path in folder.iterdir():
        if path.name not in kept:
            path.unlink()


def _compiled(
    root: Path, cache: Path, made: list[Unit]
) -> tuple[Nvcc | None, dict[str, bytes]]:
    """By unit; a compiler that was only found, not named, may be unable to."""
    try:
        nvcc = find_nvcc()
        if nvcc is None:
            return None, {}
        files = nvcc.fat_binaries(root, cache).compile(u.source for u in made)
    except (OSError, subprocess.SubprocessError, CompileError) as error:
        if os.environ.get("PTAC_NVCC"):
            raise
        print(f"CUDA kernels are shipped as sources only: {error}", file=sys.stderr)
        return None, {}
    return nvcc, {u.name: f.read_bytes() for u, f in zip(made, files, strict=True)}


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, data: bytes) -> None:
    """All at once, and not at all where nothing has changed."""
    if not path.is_file() or path.read_bytes() != data:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(data)
        fresh.replace(path)
