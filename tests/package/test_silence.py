"""What would otherwise stay silent: inactive switches, wrong names, wrong variables."""

import math
import shutil
import sys
from pathlib import Path

import pytest
import switching
import torch
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.verification import comparing

WITHOUT_EXTENSION = "import sys; sys.modules['pai_torchacc._C'] = None\n"
TOO_OLD = "import torch; torch.__version__ = '2.9.1'\n"


@pytest.mark.parametrize(
    ("before", "reason"),
    [(WITHOUT_EXTENSION, "no compiled extension"), (TOO_OLD, "2.9.1 is too old")],
)
def test_inactive_enable_warns_once(before: str, reason: str) -> None:
    program = (
        f"{before}import pai_torchacc as ptac\n"
        "for _ in range(3):\n    ptac.enable(); ptac.enable_memory_pool()\n"
        "ptac.disable()\n"
    )
    done = switching.forked(["-c", program])
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(reason) == 1
    assert "operator_fusion, memory_pool are not active" in done.stderr


def test_run_warns_too(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import torch\nprint('done')\n")
    main = "from pai_torchacc.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    command = ["-c", WITHOUT_EXTENSION + main, "run", str(script)]
    for option in ([], ["-W", "error::RuntimeWarning"]):
        done = switching.run_python([*option, *command])
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
        assert done.stderr.count("no compiled extension") == 1


@pytest.mark.parametrize(
    ("command", "package"),
    [("bench", "rich"), ("calibrate FILE", "rich"), ("verify", "rich"),
     ("demo", "rich"), ("demo --epochs 1 --out OUT", "sklearn")],
)  # fmt: skip
def test_commands_say_which_extra_they_need(
    command: str, package: str, tmp_path
) -> None:
    program = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from pai_torchacc.__main__ import main\n"
        f"sys.exit(main({command.split()!r}))"
    )
    done = switching.forked(["-c", program], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    text = f"this needs {package}: pip install 'pai_torchacc[bench]'"
    assert done.stderr == f"python -m pai_torchacc: {text}\n"


def test_a_source_folder_without_extension_says_so(tmp_path) -> None:
    package = tmp_path / "pai_torchacc"
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(Path(ptac.__file__).parent, package, ignore=ignored)
    (tmp_path / "setup.py").touch()
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{WITHOUT_EXTENSION}"
        "import pai_torchacc as ptac; print(ptac.enable().reason)\n"
    )
    done = switching.forked(["-c", program])
    folder = f"no compiled extension in the source folder {tmp_path}: "
    assert done.stdout.startswith(folder), done.stdout + done.stderr
    assert "pip install -e ." in done.stdout


def test_who_asked_for_it_is_not_warned() -> None:
    done = switching.forked(
        ["-c", "import pai_torchacc as ptac; assert not ptac.enable()"],
        PTAC_DISABLE="1",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_warning_points_to_the_users_line(tmp_path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        WITHOUT_EXTENSION + "import pai_torchacc as ptac\nptac.enable_memory_pool()\n"
    )
    done = switching.forked([str(script)])
    assert f"{script}:3: RuntimeWarning" in done.stderr


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("PTAC_NUMERIC", "PTAC_NUMERICS"), ("PTAC_VERFIY", "PTAC_VERIFY"),
     ("PTAC_DISABLED", "PTAC_DISABLE"), ("PTAC_REPROT", "PTAC_REPORT")],
)  # fmt: skip
def test_mistyped_variables_are_named(wrong: str, right: str) -> None:
    text = f"{wrong} is no variable of pai_torchacc; did you mean {right}?"
    program = "import pai_torchacc as ptac; ptac.enable(); ptac.enable()"
    done = switching.forked(["-c", program], **{wrong: "1"})
    assert done.stderr.count(text) == 1
    done = switching.forked(["-m", "pai_torchacc", "info"], **{wrong: "1"})
    assert done.returncode == 0
    assert done.stderr.count(text) == 1


def test_known_variables_are_not() -> None:
    program = "import pai_torchacc as ptac; ptac.enable()"
    done = switching.forked(
        ["-c", program],
        PTAC_ENABLE="all", PTAC_NUMERICS="exact", PTAC_VERIFY="9", PTAC_TEST_SEED="1",
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_missing_names_say_what_there_is() -> None:
    with pytest.raises(AttributeError, match=r"did you mean 'memory_stats'\?.*verify"):
        ptac.memory_stat  # noqa: B018
    with pytest.raises(AttributeError, match=r"There are: Handle, .*, verify, \w+$"):
        ptac.zzz  # noqa: B018
    assert not hasattr(ptac, "__wrapped__")
    assert set(dir(ptac)) == {*ptac.__all__, "__version__"}
    assert all(hasattr(ptac, name) for name in dir(ptac))


def test_quantize_model_gives_the_true_reason(monkeypatch) -> None:
    monkeypatch.setenv("PTAC_DISABLE", "1")
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    with pytest.warns(UserWarning, match="no layer has become int8 .*PTAC_DISABLE"):
        ptac.quantize_model(model)
    layers = ptac.quantization_report(model).as_dict()["layers"]
    ptac.disable()
    assert {layer["reason"] for layer in layers} == {
        "int8 kernels are not active: switched off by PTAC_DISABLE"
    }


def test_dB_is_a_number_or_a_sentence() -> None:  # noqa: N802
    def verdict(stock: list[float], ours: list[float]) -> tuple[bool, str]:
        (found,) = comparing.compare_int8(
            {"y": torch.tensor(stock)}, {"y": torch.tensor(ours)}
        )
        return found.passes, found.note

    assert verdict([1.0, 2.0], [1.01, 2.0])[0]
    assert "dB" in verdict([1.0, 2.0], [1.5, 2.0])[1]
    assert verdict([0.0, 0.0], [0.1, 0.0]) == (False, "int8, stock gives zeros")
    assert verdict([0.0, 1.0], [-0.0, 1.0])[0]
    assert not verdict([1.0, 2.0], [math.nan, 2.0])[0]
    assert verdict([math.nan, 2.0], [math.nan, 2.01])[0]
    assert verdict([math.inf, 2.0], [math.inf, 2.01])[0]
    for case in ([0.0], [0.1]), ([math.inf], [1.0]), ([1.0], [math.inf]):
        assert "inf dB" not in verdict(*case)[1]


def test_bare_command_shows_help() -> None:
    done = switching.forked(["-m", "pai_torchacc"])
    assert (done.returncode, done.stderr) == (0, "")
    assert all(name in done.stdout for name in ("calibrate", "report", "env", "run"))


def test_version() -> None:
    done = switching.forked(["-m", "pai_torchacc", "--version"])
    assert done.stdout == f"pai_torchacc {ptac.__version__}\n"


def test_env_is_a_list_for_bug_reports() -> None:
    done = switching.run_python(["-m", "pai_torchacc", "env"], OMP_NUM_THREADS="2")
    lines = dict(x[2:].split(": ", 1) for x in done.stdout.splitlines())
    assert lines["torch"] == torch.__version__
    assert lines["python"].startswith(sys.version.split()[0])
    assert "OMP_NUM_THREADS=2" in lines["variables"]


def test_a_saved_report_is_shown(tmp_path) -> None:
    script, file = tmp_path / "script.py", tmp_path / "report.json"
    script.write_text(
        "import torch\ntorch.nn.functional.max_pool2d(torch.ones(8, 16, 32, 32), 2)\n"
    )
    run = ["-m", "pai_torchacc", "run", "--json", str(file), str(script)]
    assert switching.forked(run).returncode == 0
    done = switching.forked(["-m", "pai_torchacc", "report", str(file)])
    assert done.returncode == 0, done.stderr
    assert "max_pool2d" in done.stdout


@pytest.mark.parametrize(
    "text", ["no json", "[1]", '{"schema": 99}', '{"schema": 1}', "[" * 100_000, ""]
)
def test_what_is_no_report_is_one_line(tmp_path, text: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    done = switching.forked(["-m", "pai_torchacc", "report", str(file)])
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert str(file) in done.stderr


def test_progress_without_a_terminal_is_lines() -> None:
    import io

    from rich.console import Console

    from pai_torchacc.bench.progress import Steps

    lines = io.StringIO()
    with Steps(2, Console(file=io.StringIO()), lines, every_s=0) as steps:
        for what in ("first", "second"):
            steps.begin(what)
            steps.end()
    assert lines.getvalue() == "  0% first\n 50% second\n"


def test_bench_rows_come_one_by_one(tmp_path) -> None:
    file = tmp_path / "rows.csv"
    bench = ["-m", "pai_torchacc", "bench", "W1", "--quick", "--threads", "1"]
    done = switching.forked([*bench, "--csv", str(file)])
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert head.split()[:2] == ["figure", "against"]
    written = [x for x in file.read_text().splitlines() if not x.startswith("#")]
    assert len(rows) >= len(written) - 1 > 0
    assert "0% 1 thread(s): " in done.stderr
