"""``python -m pai_torchacc run``: what ``python`` runs, in its way, but enabled."""

from __future__ import annotations

from pathlib import Path

import pytest
import switching

IS_ENABLED = """
import pai_torchacc as ptac
print(ptac.is_enabled("operator_fusion"), ptac.status()["operator_fusion"]["reason"])
"""

SAY_PATH = "import sys; print([e for e in sys.path if e not in sys.argv[1:]])"


def run(arguments: list[str], cwd: Path) -> str:
    done = switching.run_python(["-m", "pai_torchacc", "run", *arguments], cwd=cwd)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "first",
    [
        "",
        "import importlib.util as u; u.find_spec('torch'); u.find_spec('torch')",
        "import importlib.util as u; assert u.find_spec('torch').loader.is_package",
        "import importlib.util as u; u.find_spec('torch.nn')",
        "import threading as t; t.Thread(target=lambda: __import__('torch')).start()",
    ],
)
def test_a_script_is_enabled_with_torch(first: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{first}\nimport torch\n{IS_ENABLED}")
    assert run([str(script)], tmp_path) == "True None\n"


def test_a_script_that_only_asks_for_torch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import importlib.util, sys\n"
        "importlib.util.find_spec('torch')\n"
        "print('torch' in sys.modules)\n"
    )
    assert run([str(script)], tmp_path) == "False\n"


def test_a_child_is_enabled(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    child = "import torch" + IS_ENABLED
    script.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    )
    assert run([str(script)], tmp_path) == "True None\n"


@pytest.mark.parametrize("how", ["script", "module", "folder"])
def test_the_search_path_is_that_of_python(how: str, tmp_path: Path) -> None:
    """In particular, the current folder is no place to import from for a script."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__main__.py").write_text(SAY_PATH)
        (tmp_path / name / "said.py").write_text(SAY_PATH)
    arguments = {
        "script": ["../there/said.py"],
        "module": ["-m", "said"],
        "folder": [str(tmp_path / "there")],
    }[how]
    here = tmp_path / "here"
    plain = switching.run_python(arguments, cwd=here)
    assert plain.returncode == 0, plain.stderr
    assert run(arguments, here) == plain.stdout
