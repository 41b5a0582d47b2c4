"""Kernels as nvcc and NVRTC compile them: every architecture, against their plans."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import cuda_fakes
import machine_code
import native
import pytest
from cuda_fakes import kernels

from pai_torchacc.cuda_kernels import nvrtc, shipped
from pai_torchacc.cuda_kernels.shipped import Source
from pai_torchacc.cuda_kernels.target import Target

UNITS = kernels.units(native.ROOT)


@pytest.fixture(scope="module")
def nvcc() -> kernels.Nvcc:
    found = kernels.find_nvcc()
    if found is None:
        pytest.skip("no nvcc: PATH, CUDA_HOME, /usr/local/cuda, nvidia-cuda-nvcc")
    return found


def compiled(
    nvcc: kernels.Nvcc, source: Path, command: list[str], kind: str
) -> tuple[Path, str]:
    """The file, and what was said of it."""
    made = kernels.Objects(
        native.OBJECTS, native.ROOT, command, kind=kind, is_quiet=True
    )
    [file] = made.compile([source])
    return file, made.warnings([source])


def ptx_of(nvcc: kernels.Nvcc, source: Path) -> str:
    command = [nvcc.path, *kernels.FLAGS, "-arch=compute_80"]
    return compiled(nvcc, source, command, "-ptx")[0].read_text()


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_kernels_are_as_planned(nvcc: kernels.Nvcc, unit: kernels.Unit) -> None:
    """For all architectures; what the build has not compiled takes seconds a file."""
    made = nvcc.fat_binaries(native.ROOT, native.OBJECTS)
    if not native.FULL and not made.is_current(unit.source):
        pytest.skip("not compiled by a build here; PTAC_TEST_FULL=1 compiles it")
    made.compile([unit.source])
    plan = machine_code.plan_of(unit.source)
    said = made.warnings([unit.source])
    for architecture in nvcc.architectures:
        assert f"for 'sm_{architecture}'" in said
    assert machine_code.faults(said, plan) == []
    if any(entry.get("packs") for entry in plan.values()):
        assert machine_code.pack_faults(ptx_of(nvcc, unit.source), plan) == []


def test_faults_are_found(nvcc: kernels.Nvcc) -> None:
    source = native.TESTS / "device" / "planned.cu"
    command = [nvcc.path, *kernels.FLAGS, "-Xptxas=-v", "-arch=sm_80"]
    _, said = compiled(nvcc, source, command, "-cubin")
    [local] = machine_code.faults(said, {})
    assert re.fullmatch(
        r"planned_local for sm_80: 256 bytes stack frame, 0 .*, 0 .*", local
    )
    plan = {"planned_single": {"registers": 4}, "planned_absent": {}}
    found = machine_code.faults(said, plan)
    assert any("planned_single for sm_80" in f and "planned 4" in f for f in found)
    assert "planned_absent: planned, and not there" in found
    ptx = ptx_of(nvcc, source)
    packs = {f"planned_{name}": {"packs": True} for name in ("packs", "single")}
    assert machine_code.pack_faults(ptx, packs) == [
        "planned_single: no read of 16 bytes",
        "planned_single: no write of 16 bytes",
    ]


OLDER = 75
"""What NVRTC compiles for, where the package has no machine code for a device."""


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_kernels_compile_for_older_devices(
    nvcc: kernels.Nvcc, unit: kernels.Unit
) -> None:
    if not native.FULL and unit.name != "max_pool2d":
        pytest.skip("one stands for all; PTAC_TEST_FULL=1 compiles them")
    known = subprocess.run(
        [nvcc.path, "--list-gpu-code"], capture_output=True, text=True, check=True
    )
    if f"sm_{OLDER}" not in known.stdout.split():
        pytest.skip(f"this nvcc compiles for newer devices than sm_{OLDER}")
    command = [nvcc.path, *kernels.FLAGS, f"-arch=sm_{OLDER}"]
    compiled(nvcc, unit.source, command, "-cubin")


def test_multiplications_are_not_contracted(nvcc: kernels.Nvcc) -> None:
    """A kernel has the fused operations that its source has, whoever compiles it."""
    assert "-fmad=false" in nvcc.fat_binary()
    assert "--fmad=false" in nvrtc.OPTIONS


def test_a_build_ships_what_it_compiled(nvcc: kernels.Nvcc, tmp_path: Path) -> None:
    made = nvcc.fat_binaries(native.ROOT, native.OBJECTS)
    if not native.FULL and not all(made.is_current(u.source) for u in UNITS):
        pytest.skip("not compiled by a build here; PTAC_TEST_FULL=1 compiles it")
    kernels.ship(native.ROOT, native.OBJECTS, tmp_path)
    names = {"kernels.json", *(f"{u.name}.fatbin" for u in UNITS)}
    assert {p.name for p in tmp_path.iterdir()} == names
    for unit in UNITS:
        binary = (tmp_path / f"{unit.name}.fatbin").read_bytes()
        assert binary.startswith(cuda_fakes.FAT_BINARY[:4])


# --- NVRTC ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> nvrtc.Nvrtc:
    """The NVRTC of this environment, or that of ``PTAC_TEST_NVRTC``, a site-packages.

    Builds of torch for the CPU bring none; the wheel nvidia-cuda-nvrtc does for tests.
    """
    import torch

    folders = [Path(torch.__file__).parents[1]]
    if named := os.environ.get("PTAC_TEST_NVRTC"):
        folders.append(Path(named))
    for folder in folders:
        for major in ("13", "12"):
            version = types.SimpleNamespace(cuda=major)
            beside = types.SimpleNamespace(
                __file__=str(folder / "torch" / "__init__.py"), version=version
            )
            if nvrtc.files(beside):
                return nvrtc.find(beside)
    pytest.skip("no NVRTC beside torch: pip install nvidia-cuda-nvrtc")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> shipped.Shipped:
    """What a build without nvcc ships."""
    folder = cuda_fakes.Fakes(tmp_path_factory.mktemp("shipped")).kernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "FOLDER", folder)
        return shipped.contents.__wrapped__()


@pytest.mark.long
@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_nvrtc_compiles(
    real: nvrtc.Nvrtc, content: shipped.Shipped, unit: kernels.Unit, capability: int
) -> None:
    options, is_cubin = real.options(Target(13000, (capability,)))
    code = real.compile(content.source(unit.name), options, is_cubin)
    assert is_cubin
    assert code.startswith(b"\x7fELF")


def test_nvrtc_compiles_a_little(real: nvrtc.Nvrtc, content: shipped.Shipped) -> None:
    headers = content.source("log_softmax").headers
    text = (native.TESTS / "device" / "planned.cu").read_text()
    source = Source("planned.cu", text, headers)
    for capabilities, begin in (((90,), b"\x7fELF"), ((80, 90), b"//")):
        options, is_cubin = real.options(Target(13000, capabilities))
        assert real.compile(source, options, is_cubin).startswith(begin)


def test_nvrtc_says_where_an_error_is(
    real: nvrtc.Nvrtc, content: shipped.Shipped
) -> None:
    good = content.source("log_softmax")
    wrong = Source("wrong.cu", good.text + "\nint wrong(", good.headers)
    options, is_cubin = real.options(Target(13000, (90,)))
    line = good.text.count("\n") + 2
    with pytest.raises(nvrtc.CompileError, match=rf"wrong\.cu\({line}\): error"):
        real.compile(wrong, options, is_cubin)


C_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "int*": ctypes.POINTER(ctypes.c_int),
    "size_t*": ctypes.POINTER(ctypes.c_size_t),
    "char*": ctypes.c_char_p,
    "char**": ctypes.POINTER(ctypes.c_char_p),
    "nvrtcProgram": ctypes.c_void_p,
    "nvrtcProgram*": ctypes.POINTER(ctypes.c_void_p),
}


def test_prototypes_are_those_of_the_header(real: nvrtc.Nvrtc) -> None:
    header = Path(real.path).parents[1] / "include" / "nvrtc.h"
    if not header.is_file():
        pytest.skip(f"no {header}")
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\bconst\b", "", header.read_text(), flags=re.S)
    for name, prototype in nvrtc.PROTOTYPES.items():
        [parameters] = re.findall(rf"nvrtcResult\s+{name}\s*\(([^)]*)\)", text)
        found = []
        for parameter in parameters.split(","):
            kind, _, _ = re.sub(r"\s*\*\s*", "* ", parameter).strip().rpartition(" ")
            found.append(C_TYPES[kind.replace(" ", "")])
        assert tuple(found) == prototype, name


def test_an_unknown_device_has_ptx_of_an_older_one() -> None:
    compiler = nvrtc.Nvrtc(None, "", (13, 0), (75, 80, 90))
    assert compiler.options(Target(13000, (80,)))[0][0].endswith("sm_80")
    for capabilities, name in (((86,), "compute_80"), ((90, 100), "compute_90")):
        options, is_cubin = compiler.options(Target(13000, capabilities))
        assert (options[0], is_cubin) == (f"--gpu-architecture={name}", False)
    with pytest.raises(nvrtc.CompileError, match="not sm_70"):
        compiler.options(Target(13000, (70,)))


def test_only_torchs_own_folders_are_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "site-packages"
    elsewhere = tmp_path / "elsewhere"
    for folder in ("torch/lib", "nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"):
        (packages / folder).mkdir(parents=True)
    elsewhere.mkdir()
    good = [
        *("torch/lib/libnvrtc-1a2b.so.99", "nvidia/cu13/lib/libnvrtc.so.99"),
        "torch/lib/libcaffe2_nvrtc.so",
    ]
    for name in (
        *good,
        "nvidia/cu13/lib/libnvrtc-builtins.so.99.0",
        "nvidia/cu13/lib/libnvrtc.alt.so.99",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",  # another major version
        "../elsewhere/libnvrtc.so.99",
    ):
        (packages / name).write_bytes(b"")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(elsewhere))
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(sys, "path", [str(elsewhere), *sys.path])
    torch = types.SimpleNamespace(
        __file__=str(packages / "torch" / "__init__.py"),
        version=types.SimpleNamespace(cuda="99.0"),
    )
    assert nvrtc.files(torch) == [packages / name for name in good]
    with pytest.raises(nvrtc.NoNvrtc):
        nvrtc.find(torch)
