"""``python -m pai_torchacc run``: what ``python`` runs, in its way, but enabled."""

from __future__ import annotations

import json
import re
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


FILES = {
    "here.py": "import sys; print(__file__, sys.argv, sys.path[0], __name__, "
    "getattr(__spec__, 'name', None))",
    "names.py": "print(type(__builtins__), __loader__.__class__, __cached__, __doc__)",
    "folder/__main__.py": "import sys; print(__file__, sys.argv, sys.path[0])",
    "raises.py": "def f():\n    raise ValueError('x')\ntry:\n    f()\n"
    "except ValueError as error:\n    raise KeyError('y') from error\n",
    "hook.py": "import sys, traceback\n"
    "sys.excepthook = lambda *e: print(*traceback.format_exception(*e))\n1/0\n",
    "syntax.py": "x = (\n",
    "annotation.py": "def f(x: undefined): pass",
    "stops.py": "raise KeyboardInterrupt",
    "status.py": "import sys; sys.exit(int(sys.argv[1]))",
    "words.py": "import sys; sys.exit('in words')",
    "empty/other.py": "",
}


@pytest.mark.parametrize(
    "arguments",
    [
        "./here.py a --json b",
        "here.py -v",
        "-m here x",
        "names.py",
        "-m names",
        "folder a",
        "./folder",
        "- x",
        "raises.py",
        "-m raises",
        "hook.py",
        "syntax.py",
        "annotation.py",
        "stops.py",
        "-m stops",
        "status.py 0",
        "status.py 7",
        "words.py",
        "-m json.tool missing",
        "-m missing",
        "empty",
    ],
)
def test_what_a_program_sees_and_leaves_is_as_by_python(
    arguments: str, tmp_path: Path
) -> None:
    """Its names, its traceback, the status."""
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    plain, ours = (
        switching.run_python(
            [*command, *arguments.split()], cwd=tmp_path, stdin=FILES["here.py"]
        )
        for command in ([], ["-m", "pai_torchacc", "run"])
    )
    assert ours.stdout == plain.stdout
    assert ours.stderr == plain.stderr
    assert ours.returncode == plain.returncode


def test_main_stays_the_programs(tmp_path: Path) -> None:
    """For what runs after its last line, and for children that import it."""
    script = """
import atexit, inspect, multiprocessing, pickle, sys, threading
class Kept:
    pass
def work(kept):
    return type(kept).__module__
def later():
    assert type(pickle.loads(pickle.dumps(Kept()))) is Kept
    print(sys.modules["__main__"].Kept is Kept, inspect.getsource(Kept)[:5])
def last():
    threading.main_thread().join()
    later()
if __name__ == "__main__":
    atexit.register(later)
    threading.Thread(target=last).start()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(work, [Kept()]))
"""
    (tmp_path / "kept.py").write_text(script)
    for arguments in (["kept.py"], ["-m", "kept"]):
        assert run(arguments, tmp_path) == ("['__mp_main__']\nTrue class\nTrue class\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.py"], r".* run: can't open file '.*missing.py': .*\n"),
        ([], r"usage: .* run .*\n(.*\n)*.*: error: name a script to run.*\n"),
        (["--json", "no/r.json", "here.py"], r".* run: .*'no'\n"),
    ],
)
def test_what_cannot_be_run(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    command = ["-m", "pai_torchacc", "run", *arguments]
    done = switching.run_python(command, cwd=tmp_path)
    assert re.fullmatch(said, done.stderr)
    assert done.returncode == 2


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PTAC_ENABLE", "foo"),
        ("PTAC_NUMERICS", "bad"),
        ("PTAC_VERIFY", "-1"),
        ("PTAC_CALIBRATION", "/nope"),
        ("PTAC_CPU_ISA", "mmx"),
    ],
)
def test_wrong_variables_are_said_before_the_program_starts(
    variable: str, value: str, tmp_path: Path
) -> None:
    (tmp_path / "script.py").write_text("print('started')")
    done = switching.run_python(
        ["-m", "pai_torchacc", "run", "script.py"], cwd=tmp_path, **{variable: value}
    )
    assert re.fullmatch(rf".* run: .*{variable}.*{value}.*\n", done.stderr)
    assert not done.stdout
    assert done.returncode == 2


def test_an_unknown_variable_is_named_once(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import torch")
    command = ["-m", "pai_torchacc", "run", "script.py"]
    done = switching.run_python(command, cwd=tmp_path, PTAC_DISABLED="1")
    assert done.stderr.count("did you mean PTAC_DISABLE?") == 1, done.stderr


def test_a_variable_that_the_program_spoils_is_a_line_in_the_log(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(
        "import os; os.environ['PTAC_NUMERICS'] = 'bad'; import torch; print('goes on')"
    )
    command = ["-m", "pai_torchacc", "run", "script.py"]
    done = switching.run_python(command, cwd=tmp_path)
    assert done.stdout == "goes on\n"
    assert re.fullmatch(r"pai_torchacc .*PTAC_NUMERICS.*\n", done.stderr)


def test_reports_are_where_the_program_started(tmp_path: Path) -> None:
    """One of each process, whatever folders and programs follow."""
    child = "import os, torch; print(os.getpid())"
    (tmp_path / "script.py").write_text(
        "import os, subprocess, sys\nos.chdir('/')\nimport torch\n"
        f"subprocess.run([sys.executable, '-c', {child!r}], check=True)\n"
    )
    command = ["-m", "pai_torchacc", "run", "--json", "ours.json", "script.py"]
    done = switching.run_python(command, cwd=tmp_path, PTAC_REPORT="r.json")
    assert done.returncode == 0, done.stderr
    pid = done.stdout.strip()
    written = {p.name: json.loads(p.read_text()) for p in tmp_path.glob("*.json")}
    assert set(written) == {"ours.json", "r.json", f"r.{pid}.json"}
    for document in written.values():
        assert document["switches"]["operator_fusion"]["active"]


@pytest.mark.parametrize(
    "arguments",
    [
        "info --json .",
        "demo --epochs 0",
        "demo --threads -1",
        "demo --out here.py/x",
        "bench --csv no/such.csv",
        "bench --plot no/such.png",
        "bench --check",
        "bench --threads 0",
        "bench nothing_like_it",
        "calibrate .",
        "calibrate no/such.csv",
        "calibrate t.csv --ops zero_grad",
        "calibrate t.csv --ops linear_act_backward",
        "calibrate t.csv --kinds 1x1*",
        "calibrate t.csv --ops conv2d --kinds 9x9*",
        "calibrate t.csv --rows *avx512",
        "calibrate t.csv --ops mean --rows *avx512 --generic",
        "info --speed",
    ],
)
def test_wrong_commands_are_a_line_before_anything_runs(
    arguments: str, tmp_path: Path
) -> None:
    (tmp_path / "here.py").write_text("")
    command = ["-m", "pai_torchacc", *arguments.split()]
    done = switching.forked(command, cwd=tmp_path)
    assert done.returncode == 2
    assert not done.stdout
    name = f"python -m pai_torchacc {arguments.split(maxsplit=1)[0]}"
    *usage, last = done.stderr.splitlines()
    assert last.startswith(f"{name}: ")
    assert not usage or usage[0].startswith(f"usage: {name} ")
    assert {p.name for p in tmp_path.iterdir()} == {"here.py"}
