"""House rules that a program can check: format, size, and who may include whom."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

import native
import pytest

CLANG_FORMAT = "14.0.6"
LONGEST_FILE = 600
LONGEST_LINE = 88
LARGEST_FOLDER = 20

# What is written by hand and kept; everything else in the tree is built or stored.
FOLDERS = ("csrc", "pai_torchacc", "tests", "benchmarks", "examples")
C_SUFFIXES = (".c", ".h", ".cpp", ".cu", ".cuh")


def files(*suffixes: str) -> list[Path]:
    found = [p for f in FOLDERS for p in (native.ROOT / f).rglob("*")]
    found += native.ROOT.glob("*.py")
    return sorted(p for p in found if p.suffix in suffixes)


def tool(name: str) -> str:
    """A tool of the environment that runs the tests, else one on the path."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install pai-torchacc[test]")
    return found


def test_c_is_formatted() -> None:
    clang_format = tool("clang-format")
    version = native.run([clang_format, "--version"])
    if CLANG_FORMAT not in version:
        pytest.skip(f"clang-format {CLANG_FORMAT} is asked for, this is {version}")
    sources = [str(p) for p in files(*C_SUFFIXES)]
    native.run([clang_format, "--dry-run", "-Werror", *sources])


@pytest.mark.parametrize("command", [("check",), ("format", "--check")])
def test_python_is_clean(command: tuple[str, ...]) -> None:
    native.run([tool("ruff"), *command, "--no-cache", str(native.ROOT)])


def test_c_lines_are_short() -> None:
    """clang-format leaves comments as they are."""
    for source in files(*C_SUFFIXES):
        for number, line in enumerate(source.read_text().splitlines(), 1):
            assert len(line) <= LONGEST_LINE, f"{source}:{number}"


def test_files_are_short() -> None:
    lengths = {p: len(p.read_text().splitlines()) for p in files(".py", *C_SUFFIXES)}
    too_long = {str(p): n for p, n in lengths.items() if n > LONGEST_FILE}
    assert not too_long


def includes_of(source: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', source.read_text(), re.M)


# A folder is a floor: what it stands on, besides the C library and instructions.
STANDS_ON = {
    "core": {"core"},
    "data": {"core", "data"},
    "device": {"core", "device"},
    "mem": {"core", "device", "mem"},
    "ops": {"core", "device", "ops"},
    "bind": {"core", "data", "device", "mem", "ops", "bind"},
}


def test_no_arrow_runs_back_up() -> None:
    rooms = {p.name for p in native.CSRC.iterdir() if p.is_dir()}
    assert rooms <= STANDS_ON.keys(), "a new room: say here what it stands on"
    for source in files(*C_SUFFIXES):
        if not source.is_relative_to(native.CSRC):
            continue
        room = source.relative_to(native.CSRC).parts[0]
        for included in includes_of(source):
            other = included.split("/")[0]
            assert other not in rooms or other in STANDS_ON[room], (
                f"{source} includes {included}"
            )


@pytest.mark.parametrize("room", ["core", "data", "device", "mem", "ops"])
def test_only_bind_knows_python_and_torch(room: str) -> None:
    stranger = re.compile(r"Python\.h|torch|ATen|c10|bind/")
    for source in (native.CSRC / room).rglob("*.[ch]"):
        strange = [i for i in includes_of(source) if stranger.search(i)]
        assert not strange, source


def test_the_package_has_no_other_native_code() -> None:
    assert [p for p in files(".cpp", ".cc", ".cxx") if "tests" not in p.parts] == []


def test_every_c_file_is_built() -> None:
    built = {native.ROOT / source for source in native.extension_build()[0].sources}
    assert built == set(native.CSRC.rglob("*.c"))


def test_assembly_is_volatile() -> None:
    """Without the word a compiler may move an instruction before the check for it."""
    for source in native.CSRC.rglob("*.[ch]"):
        for statement in re.findall(r"\b__asm__\b.*", source.read_text()):
            assert statement.startswith("__asm__ volatile"), source


def test_headers_are_guarded_by_their_path() -> None:
    """Templates are included many times over and undefine what they used instead."""
    for header in native.CSRC.rglob("*.h"):
        if header.stem.endswith("_tpl"):
            continue
        text = header.read_text()
        guard = re.search(r"^#ifndef (PTAC_\w+_H)\n#define (\w+)$", text, re.M)
        assert guard, header
        assert guard[1] == guard[2], header
        path = header.relative_to(native.CSRC).with_suffix("").parts
        assert guard[1] == f"PTAC_{'_'.join(path).upper()}_H", header


def test_files_that_are_named_exist() -> None:
    """In comments and documents; files of torch's own folders stand behind its name."""
    named = re.compile(
        r"(?<![\w/.])(?:csrc|tests|benchmarks|docs|examples|tools)/[\w/-]+"
        r"\.(?:c|h|cpp|cu|py|md|csv|toml|sh)\b"
    )
    documents = [*native.ROOT.glob("*.md"), *native.ROOT.glob("docs/*.md")]
    missing = [
        f"{path.relative_to(native.ROOT)}: {name}"
        for path in [*files(".c", ".h", ".cpp", ".py", ".md"), *documents]
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not any((native.ROOT / base / name).exists() for base in ("", "tests"))
    ]
    assert not missing


def test_files_open_by_saying_what_they_are() -> None:
    for source in files(*C_SUFFIXES):
        opening = source.read_text()
        assert re.match(rf"/\*\n \* {re.escape(source.name)} - ", opening), source


DRAWN_DEPTH = 3
"""Folders below this many names need no line of their own."""


def tree_in_contributing() -> set[Path]:
    """The paths of the annotated tree, which tells depth by two spaces each.

    A line of names that all end in a slash draws all of them.
    """
    text = (native.ROOT / "CONTRIBUTING.md").read_text()
    [_, tree, *_] = text.split("```")
    paths, above = set(), [native.ROOT]
    for line in tree.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        words = line.split()
        names = words if all(w.endswith("/") for w in words) else words[:1]
        paths |= {above[depth] / name for name in names}
        above[depth + 1 :] = [above[depth] / names[0]]
    return paths


def test_contributing_draws_the_tree() -> None:
    drawn = tree_in_contributing()
    assert [str(p) for p in drawn if not p.exists()] == []
    found = [p.relative_to(native.ROOT) for p in files(".py", ".csv", *C_SUFFIXES)]
    folders = {f for p in found for f in p.parents if 0 < len(f.parts) <= DRAWN_DEPTH}
    missing = {f for f in folders if native.ROOT / f not in drawn}
    assert {
        str(f) for f in missing if f.parts[0] != "tests" or len(f.parts) < 3
    } == set()


def test_folders_are_small() -> None:
    """A folder of more files holds two purposes."""
    counts = Counter(p.parent for p in files(".py", ".pyi", ".md", *C_SUFFIXES))
    assert {str(f): n for f, n in counts.items() if n > LARGEST_FOLDER} == {}
