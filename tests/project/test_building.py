"""Building from source: what is missing is one line, and the version is git's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import native

sys.path.insert(0, str(native.ROOT / "tools"))

from version import version


def test_a_missing_compiler_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "bdist_wheel"],
        cwd=native.ROOT,
        env=os.environ | {"CC": "no-such-compiler -O2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    [line] = (done.stdout + done.stderr).splitlines()
    assert "a C compiler is needed: no no-such-compiler" in line


def source_tree(folder: Path) -> Path:
    package = folder / "pai_torchacc"
    package.mkdir()
    (package / "_version.py").write_text('__version__ = "9.8.7"\n')
    return folder


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
    native.run(["git", *who, *words], cwd=folder)


def test_the_version_is_of_the_nearest_tag(tmp_path: Path) -> None:
    tree = source_tree(tmp_path)
    assert version(tree) == "9.8.7"  # no git
    git(tree, "init", "-q")
    git(tree, "commit", "-q", "--allow-empty", "-m", "first")
    assert version(tree) == "9.8.7"  # no tag
    git(tree, "tag", "v1.2.3")
    assert version(tree) == "1.2.3"
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")
    assert version(tree).startswith("1.2.4.dev1+g")


def test_an_sdist_keeps_its_version(tmp_path: Path) -> None:
    tree = source_tree(tmp_path)
    (tree / "PKG-INFO").write_text("Metadata-Version: 2.4\nVersion: 1.2.4.dev1+gab\n")
    assert version(tree) == "1.2.4.dev1+gab"


def test_another_repositorys_tags_are_not_ours(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    git(tmp_path, "tag", "v5.0.0")
    inner = tmp_path / "inner"
    inner.mkdir()
    assert version(source_tree(inner)) == "9.8.7"
