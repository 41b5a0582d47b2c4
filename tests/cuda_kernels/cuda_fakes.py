"""Processes with a CUDA driver and an NVRTC that are stand-ins, see tests/csrc/device.

A scenario is a program of a few lines behind ``BEGIN``; what it prints last is JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import native

sys.path.insert(0, str(native.ROOT / "tools"))

import kernels

FAT_BINARY = b"\x50\xed\x55\xba stands for one"

BEGIN = """
import ctypes, json, os, sys, types
from pathlib import Path
driver = {driver!r} and ctypes.CDLL({driver!r}, mode=ctypes.RTLD_GLOBAL)
from pai_torchacc import _C as c, cuda_kernels
from pai_torchacc.cuda_kernels import nvrtc, providing, shipped
shipped.FOLDER = Path({kernels!r})
cuda_kernels.DRIVER_FILES = ("/dev/null",)
nvrtc.files = lambda torch: [Path(p) for p in {nvrtc!r}]
cuda = types.SimpleNamespace(_is_compiled=lambda: True, is_initialized=lambda: False)
version = types.SimpleNamespace(cuda="13.0", hip=None)
sys.modules["torch"] = torch = types.SimpleNamespace(cuda=cuda, version=version)
compiler = {nvrtc!r} and ctypes.CDLL({nvrtc!r}[0])
def settle(*units):
    # until these, or all, are not wanted any more
    while "wanted" in [c.cuda_units()[unit] for unit in units or c.cuda_units()]:
        os.sched_yield()
    assert providing.wait(60)
def want(*units):
    for unit in units:
        c.cuda_want(unit)
    settle(*units)
def tell(**more):
    found = cuda_kernels.status(c)["cuda_kernels"]
    if compiler:
        assert compiler.fake_nvrtc_alive() == 0
        assert compiler.fake_nvrtc_violations() == 0
        found["compiled"] = compiler.fake_nvrtc_compiled()
    found["remarks"] = cuda_kernels.remarks(c)
    print(json.dumps(found | more))
"""


@dataclass(frozen=True)
class Fakes:
    """Libraries, and what the package brings, in a folder of the session's."""

    folder: Path

    def library(self, name: str, *sources: str, flags: tuple[str, ...] = ()) -> Path:
        """Compile a stand-in, once."""
        path = self.folder / f"{name}.so"
        if not path.exists():
            files = [str(native.TESTS / "device" / f"{s}.c") for s in sources]
            options = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
            include = f"-I{native.CSRC}"
            command = [native.CC, *options, include, *flags, *files]
            native.run([*command, "-o", str(path)])
        return path

    def driver(self, *, has_libraries: bool = True) -> Path:
        """A driver; that of before CUDA 12 does not load machine code as libraries."""
        flags = ["-Wl,-soname,libcuda.so.1"]
        if not has_libraries:
            flags.append("-DWITHOUT_LIBRARIES")
        return self.library(
            f"driver-{has_libraries}",
            *("fake_libcuda", "fake_libcuda_rest"),
            flags=tuple(flags),
        )

    def nvrtc(self) -> Path:
        """A compiler."""
        return self.library("nvrtc", "fake_nvrtc")

    def kernels(self, *, has_fat_binaries: bool = False) -> Path:
        """What the package brings, as built with or without nvcc."""
        folder = self.folder / f"kernels-{has_fat_binaries}"
        if not folder.exists():
            with mock.patch.dict(os.environ, PTAC_NVCC="0"):
                kernels.ship(native.ROOT, self.folder, folder)
            if has_fat_binaries:
                put_fat_binaries(folder)
        return folder

    def run(
        self,
        program: str,
        *,
        driver: Path | None = None,
        kernels: Path | None = None,
        has_nvrtc: bool = True,
        **environment: str,
    ) -> dict[str, Any]:
        """What a scenario prints, with a driver unless that is the empty path."""
        begin = BEGIN.format(
            driver="" if driver == Path() else str(driver or self.driver()),
            kernels=str(kernels or self.kernels()),
            nvrtc=[str(self.nvrtc())] if has_nvrtc else [],
        )
        done = subprocess.run(
            [sys.executable, "-c", begin + program],
            env=os.environ | {"PTAC_KERNEL_CACHE": "0"} | environment,
            cwd=native.ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return json.loads(done.stdout.splitlines()[-1])


def put_fat_binaries(folder: Path) -> None:
    """As if nvcc 13.0 had been there."""
    file = folder / "kernels.json"
    content = json.loads(file.read_text())
    content |= {"nvcc": {"version": [13, 0]}, "machine_code": [80, 90, 100], "ptx": 100}
    for name, unit in content["units"].items():
        unit["fat_binary"] = hashlib.sha256(FAT_BINARY).hexdigest()
        (folder / f"{name}.fatbin").write_bytes(FAT_BINARY)
    file.write_text(json.dumps(content))
