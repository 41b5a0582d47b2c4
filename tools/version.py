"""The version to build: of the sdist, else by git's tags, else the package's own.

A tag ``v1.2.3`` makes 1.2.3; N commits behind it make 1.2.4.devN+gHASH. A clone
without tags, and a tree without git, have what ``pai_torchacc/_version.py`` says.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path


def version(root: Path) -> str:
    """The version of the source tree at ``root``."""
    return _of_sdist(root) or _by_tags(root) or _written(root)


def _of_sdist(root: Path) -> str | None:
    file = root / "PKG-INFO"
    if not file.is_file():
        return None
    found = re.search(r"^Version: (\S+)$", file.read_text(encoding="utf-8"), re.M)
    return found[1] if found else None


def _by_tags(root: Path) -> str | None:
    if not (root / ".git").exists():  # nor one of a folder above, which is not ours
        return None
    command = ["git", "describe", "--tags", "--long", "--match", "v[0-9]*"]
    try:
        said = subprocess.run(
            command, cwd=root, capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    found = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)-(\d+)-(g[0-9a-f]+)\n", said)
    if not found:
        return None
    major, minor, patch, behind = map(int, found.groups()[:4])
    if not behind:
        return f"{major}.{minor}.{patch}"
    return f"{major}.{minor}.{patch + 1}.dev{behind}+{found[5]}"


def _written(root: Path) -> str:
    text = (root / "pai_torchacc" / "_version.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(\S+)"$', text, re.M)
    if not found:
        raise ValueError("pai_torchacc/_version.py has no __version__")
    return found[1]
