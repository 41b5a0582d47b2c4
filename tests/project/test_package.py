"""The package as others get it: built in isolation, installed elsewhere, run there.

Building needs setuptools from the package index; without it these tests skip and say
so.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import native
import pytest
import torch

from pai_torchacc import _C

PACKAGE = native.ROOT / "pai_torchacc"
NEEDED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1"}
VERSIONS = ("GLIBC_", "GCC_")

# Appended to setup.py in the copy that is built: what its environment could import.
PROBE = """
import importlib.util
Path({file!r}).write_text(
    str([n for n in ("torch", "numpy") if importlib.util.find_spec(n)])
)
"""

NOT_COPIED = shutil.ignore_patterns(
    ".*", "build", "dist", "out", "*.egg-info", "*.so", "__pycache__"
)


def pip(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]


def outside(**more: str) -> dict[str, str]:
    """The environment without what would lead back into this tree."""
    hidden = ("PYTHON", "PTAC_", "VIRTUAL_ENV")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(hidden)}
    return kept | more


def why_no_index(folder: Path) -> str | None:
    """Why setuptools cannot be had from the package index, or None."""
    command = pip("download", "-q", "--no-deps", "-d", str(folder), "setuptools")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or "pip download" if done.returncode else None


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the source tree, with a calibration table and a probe more.

    Objects of the same command come along; make check compiles everything anew.
    """
    folder = tmp_path_factory.mktemp("source") / "tree"
    shutil.copytree(native.ROOT, folder, ignore=NOT_COPIED)
    if not native.FULL:
        kept = native.shipped_objects()
        shutil.copytree(kept, folder / kept.relative_to(native.ROOT))
    (folder / "pai_torchacc" / "calibration" / "probe.csv").write_text("# empty\n")
    with (folder / "setup.py").open("a") as setup:
        setup.write(PROBE.format(file=str(folder / "importable")))
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one wheel that ``pip wheel`` makes of the tree, in isolation."""
    if subprocess.run(pip("--version"), capture_output=True, check=False).returncode:
        pytest.skip(f"{sys.executable} has no pip")
    folder = tmp_path_factory.mktemp("wheel")
    without_nvcc = {} if native.FULL else {"PTAC_NVCC": "0"}
    try:
        native.run(
            pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(tree)),
            env=outside(**without_nvcc),
            cwd=folder,
        )
    except AssertionError:
        if reason := why_no_index(folder):
            pytest.skip(f"the package index cannot be reached: {reason}")
        raise
    [made] = folder.iterdir()
    return made


@cache
def members(wheel: Path) -> frozenset[str]:
    with zipfile.ZipFile(wheel) as archive:
        return frozenset(archive.namelist())


def test_wheel_is_for_every_python(wheel: Path) -> None:
    assert re.fullmatch(
        r"pai_torchacc-[\d.]+-cp311-abi3-linux_(x86_64|aarch64)\.whl", wheel.name
    )


def test_build_environment_has_no_torch(wheel: Path, tree: Path) -> None:
    assert (tree / "importable").read_text() == "[]"


def test_wheel_has_the_package_and_nothing_else(wheel: Path, tree: Path) -> None:
    kept = {".py", ".pyi", ".csv", ".typed"}
    expected = {
        str(p.relative_to(tree))
        for p in (tree / "pai_torchacc").rglob("*")
        if p.suffix in kept or p.name == "py.typed"
    }
    assert {
        "pai_torchacc/_C.pyi",
        "pai_torchacc/calibration/probe.csv",
        "pai_torchacc/py.typed",
        "pai_torchacc/startup/sitecustomize.py",
    } <= expected
    ours = {m for m in members(wheel) if ".dist-info/" not in m}
    built = {"pai_torchacc/_C.abi3.so", "pai_torchacc/_kernels/kernels.json"}
    fat = {m for m in ours if m.endswith(".fatbin")}  # where nvcc is
    assert ours - fat == expected | built


def test_wheel_has_the_kernels(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        brought = json.loads(archive.read("pai_torchacc/_kernels/kernels.json"))
    assert brought["units"].keys() == _C.cuda_units().keys()
    for unit in brought["units"].values():
        for name in (unit["source"], *unit["headers"]):
            assert brought["texts"][name] == (native.CSRC / name).read_text()


def test_wheel_asks_for_torch_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [m for m in members(wheel) if m.endswith(".dist-info/METADATA")]
        metadata = archive.read(name).decode()
    required = re.findall(r"^Requires-Dist: (.*)$", metadata, re.M)
    assert [r for r in required if "extra ==" not in r] == ["torch>=2.11"]
    assert re.search(r"^License-Expression: Apache-2.0$", metadata, re.M)


@pytest.fixture(scope="module")
def elsewhere(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment that has the wheel, and torch from this one."""
    folder = tmp_path_factory.mktemp("elsewhere") / "env"
    native.run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / "bin" / "python"
    install = ("--python", str(python), "install", "-q", "--no-deps", "--no-index")
    native.run(pip(*install, str(wheel)), env=outside())
    [packages] = folder.glob("lib/python3*/site-packages")
    (packages / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    return python


def say(python: Path, program: str, **environment: str) -> str:
    """What a program says, run far from this tree."""
    return native.run(
        [str(python), "-c", program],
        cwd=python.parent,
        env=outside(**environment),
    )


def extension(elsewhere: Path) -> Path:
    [found] = elsewhere.parents[1].glob("lib/**/pai_torchacc/_C.abi3.so")
    return found


TRAIN = """
import pai_torchacc as ptac, torch
handle = ptac.enable(strict=True)
assert handle, handle.reason
ptac.report(reset=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    scores = model(torch.ones(2, 8))
    torch.nn.functional.cross_entropy(scores, torch.tensor([1, 2])).backward()
    optimizer.step()
import json
ops = json.loads(ptac.report("json"))["ops"]
assert ops["zero_grad"]["accelerated"] == 3, ops
assert ops["sgd_step"]["calls"] == 3, ops
ptac.disable()
print(ptac.__file__)
"""


def test_installed_package_enables(elsewhere: Path) -> None:
    assert str(elsewhere.parents[1]) in say(elsewhere, TRAIN)


def test_info_as_json(elsewhere: Path, tmp_path: Path) -> None:
    file = tmp_path / "info.json"
    native.run(
        [str(elsewhere), "-m", "pai_torchacc", "info", "--json", str(file)],
        cwd=elsewhere.parent,
        env=outside(),
    )
    document = json.loads(file.read_text())
    assert document["versions"]["torch"] == torch.__version__
    assert document["operators"]["max_pool2d"]["rows"]["scalar"] == "exact"


def test_extension_needs_libc_only(elsewhere: Path) -> None:
    output = native.run(["readelf", "--wide", "--dynamic", str(extension(elsewhere))])
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output))
    assert "libc.so.6" in needed
    assert needed <= NEEDED


def test_extension_takes_nothing_of_torch_when_loaded(elsewhere: Path) -> None:
    """Its undefined symbols are versioned ones of libc, and CPython's."""
    output = native.run(["readelf", "--wide", "--dyn-syms", str(extension(elsewhere))])
    undefined = re.findall(r" UND (\S+)", output)
    versioned = [name.partition("@")[::2] for name in undefined if "@" in name]
    assert versioned
    assert {v for _, v in versioned if not v.lstrip("@").startswith(VERSIONS)} == set()
    assert not [name for name, _ in versioned if name.lstrip("_").startswith("Py")]
    others = {name for name in undefined if "@" not in name}
    weak = {"_ITM_deregisterTMCloneTable", "_ITM_registerTMCloneTable"}
    assert {
        n for n in others - weak - {"__gmon_start__"} if not n.startswith(("Py", "_Py"))
    } == set()


IMPORT = """
import atexit, gc, logging, os, signal, sys, threading, warnings
def footprint():
    return (
        dict(os.environ), list(sys.meta_path), list(sys.path), list(sys.path_hooks),
        list(warnings.filters), atexit._ncallbacks(), threading.active_count(),
        list(logging.getLogger().handlers), logging.getLogger().level, gc.callbacks[:],
        signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGSEGV),
        sys.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile(),
    )
before = footprint()
import pai_torchacc
assert footprint() == before
heavy = {"torch", "numpy", "rich", "matplotlib", "sklearn"} & set(sys.modules)
assert not heavy, heavy
print("nothing happened")
"""


def test_import_does_nothing(elsewhere: Path) -> None:
    environment = {"PTAC_ENABLE": "all", "PTAC_REPORT": "stderr"}
    assert say(elsewhere, IMPORT, **environment) == "nothing happened\n"


def stub() -> dict[str, ast.FunctionDef]:
    """Functions by name; ``a = b`` gives b another."""
    body = ast.parse((PACKAGE / "_C.pyi").read_text()).body
    functions = {n.name: n for n in body if isinstance(n, ast.FunctionDef)}
    for node in body:
        match node:
            case ast.Assign([ast.Name(name)], ast.Name(known)) if known in functions:
                functions[name] = functions[known]
    return functions


def test_stub_names_what_the_extension_has() -> None:
    from pai_torchacc import _C

    assert sorted(stub()) == [n for n in dir(_C) if not n.startswith("__")]


def test_stub_counts_arguments_as_the_extension_does() -> None:
    files = "".join(p.read_text() for p in native.CSRC.glob("bind/python/**/*.c"))
    counts = {"NOARGS": 0, "DOES": 0, "GIVES": 0, "LIST": 0, "O": 1, "OF_OP": 1}
    heads = r"^PTAC_(NOARGS|DOES|GIVES|LIST|O|OF_OP|ARGS)\((\w+)(?:, (\d+)\))?"
    methods = [m for m in re.findall(heads, files, re.M) if m[0] != "ARGS" or m[2]]
    assert len(methods) > len(stub()) / 2
    for kind, name, number in methods:
        arguments = stub()[name].args
        n = len(arguments.posonlyargs) + len(arguments.args)
        assert n == counts.get(kind, int(number or 0)), name


def test_docs_explain_every_reason() -> None:
    page = (native.ROOT / "docs" / "report.md").read_text()
    table = page.partition("| reason | meaning |")[2].partition("\n\n")[0]
    explained = {
        reason.strip()
        for line in table.splitlines()[2:]
        for reason in line.removeprefix("|").partition("|")[0].split(",")
    }
    assert explained - {""} == set(_C.reasons()) - {"", "switched off"}
