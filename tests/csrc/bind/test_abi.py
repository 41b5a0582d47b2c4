"""The binary boundary: our prototypes against torch's headers, and what we export.

The extension is built without torch, so nothing checks its prototypes of libtorch when
it is compiled. ``abi_guard.cpp`` does, against the headers of the installed torch.
"""

from __future__ import annotations

import ctypes
import platform
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import native
import pytest
import torch

GUARD = native.TESTS / "bind" / "abi_guard.cpp"
TORCH = Path(torch.__file__).parent

# One mistake a line: what is written, what is right, and what the compiler must name.
MISTAKES = {
    "required": ("(at_list, size_t *)", "(at_list, int *)", "torch_list_size"),
    "optional": ("(stable_ivalue **)", "(void *)", "torch_new_stable_ivalue"),
    "result": (
        "F(bool, aoti_torch_grad_mode_is_enabled",
        "F(int, aoti_torch_grad_mode_is_enabled",
        "aoti_torch_grad_mode_is_enabled",
    ),
    "mangled": (
        "(at_tensor, int64_t, bool))",
        "(at_tensor, int64_t))",
        "we would call it wrongly: cpu_log_softmax",
    ),
    "memory": ("    void *words[3];", "    void *words[2];", "returns_in_memory"),
    "dtype": ("AT_DTYPE_BF16 = 15", "AT_DTYPE_BF16 = 14", "AT_DTYPE_BF16"),
    "device": ("AT_DEVICE_CPU = 0", "AT_DEVICE_CPU = 1", "AT_DEVICE_CPU"),
    "layout": (
        "    const int64_t *data;\n    size_t size;\n} at_ints",
        "    size_t size;\n    const int64_t *data;\n} at_ints",
        "ints_inside::as_ours",
    ),
    "width": (
        "    int64_t value;\n    bool has_value;",
        "    int32_t value;\n    bool has_value;",
        "travels_alike<at_optional_int",
    ),
    "version": (
        "(uint64_t)2 << 56 |",
        "(uint64_t)9 << 56 |",
        "PTAC_TORCH_ABI_VERSION",
    ),
}


def compile_guard(*options: str, includes: tuple[Path, ...] = ()) -> list[str]:
    """The command that compiles the guard against the installed torch."""
    return [
        native.CXX,
        "-std=c++20",
        "-Wall",
        "-Wextra",
        *(f"-I{folder}" for folder in includes),
        f"-I{native.CSRC}",
        "-isystem",
        str(TORCH / "include"),
        *options,
        str(GUARD),
    ]


@pytest.fixture(scope="module")
def guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled guard."""
    if shutil.which(native.CXX) is None:
        pytest.skip(f"no C++ compiler {native.CXX}")
    target = tmp_path_factory.mktemp("abi") / "guard.o"
    native.run(compile_guard("-Werror", "-c", "-o", str(target)))
    return target


def symbols_in(guard: Path, section: str) -> list[str]:
    """The functions that a table of the guard points to, in order."""
    output = native.run(["readelf", "--wide", "--relocs", str(guard)])
    [table] = [
        part
        for part in output.split("Relocation section ")
        if part.startswith(f"'.rela{section}'")
    ]
    return re.findall(r"R_\w+\s+[0-9a-f]+ (\w+) \+ 0", table)


def test_prototypes_are_torchs(guard: Path) -> None:
    assert guard.exists()


@pytest.mark.long
def test_wrong_prototypes_do_not_compile(guard: Path, tmp_path: Path) -> None:
    header = (native.CSRC / "bind" / "abi" / "torch_abi.h").read_text()
    wrong = header
    for name, (right, mistake, _) in MISTAKES.items():
        assert header.count(right) >= 1, f"{name}: rewrite this mistake"
        wrong = wrong.replace(right, mistake)
    copy = tmp_path / "bind" / "abi" / "torch_abi.h"
    copy.parent.mkdir(parents=True)
    copy.write_text(wrong)
    done = subprocess.run(
        compile_guard("-fsyntax-only", "-fmax-errors=0", includes=(tmp_path,)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    for name, (_, _, named) in MISTAKES.items():
        assert named in done.stderr, f"{name}: {done.stderr}"


def test_mangled_names_are_what_the_compiler_makes(guard: Path) -> None:
    for section in ("guard_mangled", "guard_cuda"):
        names = symbols_in(guard, section)
        assert names
        assert len(names) % 2 == 0
        assert names[0::2] == names[1::2]


def test_symbols_are_in_the_installed_torch(guard: Path) -> None:
    libraries = [
        ctypes.CDLL(str(TORCH / "lib" / f"libtorch_{part}.so"))
        for part in ("cpu", "python")
    ]
    names = symbols_in(guard, "guard_required") + symbols_in(guard, "guard_mangled")
    missing = [n for n in names if not any(hasattr(lib, n) for lib in libraries)]
    assert not missing


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_results_come_back_as_declared(tmp_path: Path, machine: str) -> None:
    """C++ functions with types like torch's, called by our prototypes."""
    native_machine = platform.machine() == machine
    compilers = (
        (native.CC, native.CXX)
        if native_machine
        else (f"{machine}-linux-gnu-gcc", f"{machine}-linux-gnu-g++")
    )
    emulator = [] if native_machine else [f"qemu-{machine}"]
    for tool in (*compilers, *emulator):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool}")
    objects = []
    for compiler, standard, name in zip(
        compilers,
        ("c11", "c++17"),
        ("results_ours.c", "results_theirs.cpp"),
        strict=True,
    ):
        objects.append(str(tmp_path / f"{name}.o"))
        native.run(
            [
                *(compiler, f"-std={standard}", "-O2", "-Wall", "-Wextra", "-Werror"),
                *(f"-I{native.CSRC}", "-c", str(GUARD.parent / name)),
                *("-o", objects[-1]),
            ]
        )
    program = str(tmp_path / "results")
    native.run([compilers[1], *objects, "-o", program])
    options = [] if native_machine else ["-L", f"/usr/{machine}-linux-gnu"]
    native.run([*emulator, *options, program])


def test_everything_is_c_for_aarch64(tmp_path: Path) -> None:
    """All of csrc, by the extension's own flags, warnings as errors.

    Debian's Python looks for its settings in a folder of the machine compiled for.
    This machine's settings will do: pointers have the same size on both.
    """
    compiler = "aarch64-linux-gnu-gcc"
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    build, _ = native.extension_build()
    headers = Path(sysconfig.get_path("include"))
    of_this_machine = headers.parent / str(sysconfig.get_config_var("MULTIARCH"))
    (tmp_path / "aarch64-linux-gnu").symlink_to(of_this_machine)
    sources = [str(native.ROOT / source) for source in build.sources]
    native.run(
        [
            *(compiler, *build.extra_compile_args, "-Werror", "-fsyntax-only"),
            *(f"-I{native.CSRC}", f"-I{headers}", f"-I{tmp_path}"),
            *("-DPy_LIMITED_API=0x030B0000", *sources),
        ]
    )


def readelf(extension: Path, option: str) -> str:
    return native.run(["readelf", "--wide", option, str(extension)])


def test_extension_needs_libc_only(extension: Path) -> None:
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf(extension, "--dynamic")))
    assert needed <= {"libc.so.6", "libm.so.6", "libgcc_s.so.1"}


def test_extension_is_hardened(extension: Path) -> None:
    segments = readelf(extension, "--program-headers")
    [stack] = [line for line in segments.splitlines() if "GNU_STACK" in line]
    assert "RWE" not in stack.replace(" ", "")
    assert "GNU_RELRO" in segments
    dynamic = readelf(extension, "--dynamic")
    assert "TEXTREL" not in dynamic
    assert "BIND_NOW" in dynamic


def test_extension_exports_its_entry_only(extension: Path) -> None:
    exported = re.findall(
        r"(?:GLOBAL|WEAK)\s+(?:DEFAULT|PROTECTED)\s+\d+ (\S+)",
        readelf(extension, "--dyn-syms"),
    )
    assert exported == ["PyInit__C"]
