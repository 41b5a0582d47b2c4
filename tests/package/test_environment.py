"""Environment variables, and processes in which not everything is as it should be.

Nothing here is ever worse than stock: what cannot be accelerated says why.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import _C, calibration

FUSION = "operator_fusion"
ROOT = Path(ptac.__file__).parents[1]


def pool() -> Tensor:
    return F.max_pool2d(torch.arange(64.0).reshape(1, 1, 8, 8), 2)


@pytest.mark.parametrize("names", ["", "1", "all", "true", FUSION, f" {FUSION} ,"])
def test_ptac_enable(names: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_ENABLE", names)
    with ptac.enable():
        assert ptac.is_enabled(FUSION)


def test_ptac_enable_with_a_wrong_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_ENABLE", "fusion")
    with pytest.raises(ValueError, match=f"PTAC_ENABLE: .*{FUSION}.*; or all"):
        ptac.enable()
    with ptac.enable(FUSION):
        assert ptac.is_enabled(FUSION)


@pytest.mark.parametrize("value", ["1", "yes"])
def test_ptac_disable_beats_everything(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTAC_ENABLE", FUSION)
    monkeypatch.setenv("PTAC_DISABLE", value)
    handle = ptac.enable(FUSION)
    assert not handle
    assert handle.reason == "switched off by PTAC_DISABLE"
    assert ptac.status()[FUSION]["reason"] == handle.reason
    assert not ptac.is_enabled(FUSION)
    assert handle.reason in ptac.report()
    with pytest.raises(RuntimeError, match="PTAC_DISABLE"):
        ptac.enable(strict=True)
    ptac.disable()
    with handle as still:
        assert not still


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_ptac_disable_that_says_no(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_DISABLE", value)
    with ptac.enable() as handle:
        assert handle


def test_ptac_disable_while_active(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next enable() notices it and switches off."""
    ptac.enable()
    monkeypatch.setenv("PTAC_DISABLE", "1")
    assert not ptac.enable()
    assert not _C.override_installed()
    ptac.disable()


def test_strict_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with switching.accelerated("max_pool2d"):
        monkeypatch.setenv("PTAC_DISABLE", "1")
        with pytest.raises(RuntimeError):
            ptac.enable(strict=True)
        monkeypatch.delenv("PTAC_DISABLE")
        ptac.enable(strict=True, include=["max_pool2d"])
        hits = switching.hits("max_pool2d")
        pool()
        assert hits.accelerated == 1


def empty_table(folder: Path) -> Path:
    """A calibration table that speaks for no row."""
    path = folder / "table.csv"
    path.write_text(",".join(calibration.COLUMNS) + "\n")
    return path


def test_ptac_numerics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_NUMERICS", "exact")
    table = empty_table(tmp_path)
    for options, reason in (
        ({}, "numerics level"),
        ({"numerics": "close"}, "not measured faster"),
    ):
        with ptac.enable(calibration=table, **options):
            left = ptac.status()["operator_fusion"]["left_to_stock"]
            assert left["log_softmax"] == reason
    monkeypatch.setenv("PTAC_NUMERICS", "best")
    with pytest.raises(ValueError, match=r"PTAC_NUMERICS: .*exact, close, fast"):
        ptac.enable()


def test_ptac_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTAC_VERIFY", "1")
    with switching.accelerated("max_pool2d"):
        pool()  # the first in a process is compared, but no time
        before = _C.counters("max_pool2d")[4]
        pool()
        assert _C.counters("max_pool2d")[4] == before + 1
    for wrong in ("often", "-1", "1.5"):
        monkeypatch.setenv("PTAC_VERIFY", wrong)
        with pytest.raises(ValueError, match=rf"PTAC_VERIFY: .*{re.escape(wrong)}"):
            ptac.enable()


def test_ptac_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = empty_table(tmp_path)
    monkeypatch.setenv("PTAC_CALIBRATION", str(path))
    with ptac.enable():
        assert f"calibration {path}" in ptac.report()
    monkeypatch.setenv("PTAC_CALIBRATION", str(tmp_path / "missing.csv"))
    with pytest.raises(FileNotFoundError, match=r"PTAC_CALIBRATION: .*missing\.csv"):
        ptac.enable()
    assert not ptac.is_enabled(FUSION)


TRAIN = """
import sys, torch, pai_torchacc as ptac, switching
from torch import nn
torch.manual_seed(0)
def train():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.MaxPool2d(2), nn.ReLU(),
                          nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
                          nn.Linear(36, 40), nn.Tanh(), nn.Linear(40, 10))
    opt = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(64, 1, 18, 18), torch.randint(0, 10, (64,))
    losses = []
    for _ in range(4):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        torch.log_softmax(model(x), 1).sum().backward()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return torch.tensor(losses)
"""


@pytest.mark.parametrize("where", ["stderr", "report.json"])
def test_ptac_report(where: str, tmp_path: Path) -> None:
    program = TRAIN + "ptac.enable()\ntrain()\n"
    done = switching.forked(["-c", program], cwd=tmp_path, PTAC_REPORT=where)
    assert done.returncode == 0, done.stderr
    text = done.stderr if where == "stderr" else (tmp_path / where).read_text()
    if where.endswith(".json"):
        assert json.loads(text)["ops"]["adamw_step"]["calls"] == 4
    else:
        assert re.search(r"^adamw_step +exact +4 ", text, re.M)
    assert (where == "stderr") == bool(done.stderr)
    assert not done.stderr.startswith("process")


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    done = switching.forked(
        ["-c", "import pai_torchacc as ptac; ptac.enable()"],
        PTAC_REPORT=str(tmp_path),
    )
    assert done.returncode == 0
    assert re.fullmatch(r"pai_torchacc: .* not be written: .*\n", done.stderr)


def test_chdir_does_not_move_the_report(tmp_path: Path) -> None:
    program = "import os, pai_torchacc as ptac; ptac.enable(); os.chdir('/')"
    done = switching.forked(["-c", program], cwd=tmp_path, PTAC_REPORT="r.txt")
    assert not done.stderr
    assert "\npai_torchacc " in (tmp_path / "r.txt").read_text()


PROCESSES = """
import multiprocessing, os, sys, torch, pai_torchacc as ptac
torch.set_num_threads(1)  # with more, torch itself does not survive a fork
def use():
    ptac.enable(verify=0)
    with ptac.disabled():
        torch.log_softmax(torch.ones(2, 3), 1)
if __name__ == "__main__":
    print(os.getpid(), flush=True)
    use()
    if not (pid := os.fork()):
        use()
        sys.exit()
    print(pid, flush=True)
    os.waitpid(pid, 0)
    child = multiprocessing.get_context("spawn").Process(target=use)
    child.start()
    print(child.pid)
    child.join()
"""


def test_each_process_has_its_report(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(PROCESSES)
    done = switching.forked([str(script)], cwd=tmp_path, PTAC_REPORT="r.json")
    assert done.returncode == 0, done.stderr
    _, forked, spawned = done.stdout.split()
    calls = {
        p.name: json.loads(p.read_text())["ops"]["log_softmax"]["calls"]
        for p in tmp_path.glob("r*.json")
    }
    assert calls == {"r.json": 1, f"r.{forked}.json": 2, f"r.{spawned}.json": 1}
    done = switching.forked([str(script)], cwd=tmp_path, PTAC_REPORT="stderr")
    _, forked, spawned = done.stdout.split()
    heads = [x for x in done.stderr.splitlines() if "accelerated: " in x]
    assert [x.partition(" accelerated")[0] for x in heads[:2]] == [
        f"process {forked}:",
        f"process {spawned}:",
    ]
    assert heads[2].startswith("accelerated: ")


def test_programs_side_by_side_keep_each_others_reports(tmp_path: Path) -> None:
    """As the workers of torchrun: both begin before either ends."""
    program = """
import os, sys, pai_torchacc as ptac
ptac.enable()
print(os.getpid(), flush=True)
sys.stdin.readline()
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PTAC_")}
    environment |= {"PTAC_REPORT": "r.json", "PYTHONPATH": str(ROOT)}
    (tmp_path / "r.json").write_text("of a run before")
    both = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=tmp_path,
            env=environment,
            text=True,
        )
        for _ in range(2)
    ]
    pids = [process.stdout.readline().strip() for process in both]
    for process in both:
        process.communicate("\n")
        assert process.returncode == 0
    written = {p.name for p in tmp_path.iterdir()}
    assert written == {"r.json", f"r.{pids[1]}.json"}
    assert all(json.loads(p.read_text())["schema"] == 1 for p in tmp_path.iterdir())


def rows_of(op: str) -> list[str]:
    """All rows of an operator, of whatever level and instruction set."""
    from pai_torchacc import _C

    return [row for name, _, rows in _C.operators() for row, *_ in rows if name == op]


@pytest.mark.parametrize("isa", ["scalar", "avx2"])
def test_ptac_cpu_isa(isa: str) -> None:
    """Only rows of that instruction set can run, and the numbers stay."""
    program = (
        TRAIN
        + """
from pai_torchacc import _C
stock = train()
with switching.accelerated():
    ours = train()
can = {row for _, _, rows in _C.operators() for row, _, can, _ in rows if can}
print(",".join(sorted(can)), float((ours - stock).abs().max()) < 1e-4, _C.cpu()[1])
print(all(switching._C.counters(op)[0] for op in ("max_pool2d", "adamw_step")))
"""
    )
    known = {row for op, _, _ in _C.operators() for row in rows_of(op)}
    beyond = [
        "avx512",
        "avx_vnni",
        "amx",
        "bf16",
        *(["avx2"] if isa == "scalar" else []),
    ]
    rows = ",".join(sorted(r for r in known if not any(part in r for part in beyond)))
    said = switching.python(program, PTAC_CPU_ISA=isa).split("\n")
    assert said[:2] == [f"{rows} True {isa}", "True"]


def test_ptac_cpu_isa_that_does_not_exist() -> None:
    program = """
import pai_torchacc as ptac
try:
    ptac.enable()
except ValueError as error:
    print(error)
"""
    said = switching.python(program, PTAC_CPU_ISA="mmx")
    assert "PTAC_CPU_ISA" in said
    assert "scalar, avx2 or avx512" in said


INACTIVE = (
    TRAIN
    + """
before = nn.Linear.forward, torch.optim.SGD.step, nn.Sequential.forward
handle = ptac.enable()
assert not handle and not ptac.is_enabled("operator_fusion")
assert before == (nn.Linear.forward, torch.optim.SGD.step, nn.Sequential.forward)
with ptac.disabled():
    train()
train()
assert handle.reason in ptac.report()
assert ptac.status()["operator_fusion"]["reason"] == handle.reason
print(handle.reason)
try:
    ptac.enable(strict=True)
except RuntimeError as error:
    print(error)
ptac.disable()
"""
)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        ("torch.__version__ = '2.10.1+cpu'", "torch 2.10.1+cpu is too old: 2.11"),
        ("sys.modules['pai_torchacc._C'] = None", "no compiled extension for Linux"),
    ],
)
def test_inactive_with_a_reason(trouble: str, reason: str) -> None:
    program = f"import sys, torch\n{trouble}\n" + INACTIVE.replace(", switching", "")
    said = switching.python(program).splitlines()
    assert said[0].startswith(reason)
    assert said[1].startswith(f"operator_fusion is not active: {reason}")


def test_without_torch() -> None:
    program = """
import sys
sys.modules["torch"] = None
import pai_torchacc as ptac
handle = ptac.enable()
print(handle.reason)
with ptac.disabled():
    pass
ptac.report(), ptac.status(), ptac.disable()
"""
    assert "torch cannot be imported" in switching.python(program, fresh=True)


def test_a_required_symbol_is_missing() -> None:
    hidden = {"PTAC_HIDE_SYMBOLS": "aoti_torch_get_dim"}
    program = INACTIVE.replace(", switching", "")
    said = switching.python(program, **hidden).splitlines()
    assert said[0].endswith("does not offer aoti_torch_get_dim")


def optional_symbols() -> list[str]:
    folder = Path(ptac.__file__).parents[1] / "csrc/bind/abi"
    texts = [header.read_text() for header in sorted(folder.glob("torch_*.h"))]
    lists = "".join(text.split("#define PTAC_TORCH_OPTIONAL(F)")[-1] for text in texts)
    names = re.findall(r"\b[FM]\([^,(]+,\s*(\w+),", lists)
    return [name for name in names if name in _C.symbols()]


def test_without_any_optional_symbol() -> None:
    """All ways around what a torch may lack, at once: the same numbers."""
    names = optional_symbols()
    assert {"bump_version", "cpu_avg_pool2d", "mkl_sqrt_f32"} <= set(names)
    program = (
        TRAIN
        + """
from pai_torchacc import _C
assert not any(_C.symbols()[name] for name in sys.argv[1:])
stock = train()
with switching.accelerated():
    ours = train()
with ptac.enable(), switching.pins(["max_pool2d"]):
    forwarded = train()
print(float((ours - stock).abs().max()) < 1e-4, torch.equal(forwarded, stock))
print(_C.counters("max_pool2d")[0] > 0, _C.counters("avg_pool2d")[0] > 0)
"""
    )
    # operator new and delete, and the boxes of optionals, come with the C++ library.
    hidden = [n for n in names if not n.startswith("cxx_")]
    said = switching.python(program, *hidden, PTAC_HIDE_SYMBOLS=",".join(hidden))
    assert said.splitlines() == ["True True", "True True"]


AMBIENT = """
import contextlib, internals, torch, pai_torchacc as ptac
from pai_torchacc import _C, _host, fusion
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
class Doubling(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {{}}))
        return result * 2 if isinstance(result, torch.Tensor) else result
def block():
    assert ptac.enable()
{around}
learnt = _host.has_lean_paths(), _host.knows_rounding(), fusion._doubts
assert learnt == (True, True, {{}}), learnt
cpu, f32 = torch.device("cpu"), torch.float32
with torch.inference_mode():
    inference = torch.empty(2, device=cpu)
for tensor in torch.empty(2, device=cpu), inference:
    assert internals.is_plain(tensor)
assert not internals.is_plain(torch.empty(2, device="meta"))
with torch.inference_mode():
    assert _C.thread_is_plain() == {plain}
    with torch.autocast("cpu"):
        assert not _C.thread_is_plain()
"""


@pytest.mark.parametrize(
    "around",
    [
        "block()",
        "torch.set_default_dtype(torch.float64); block()",
        "torch.set_default_dtype(torch.bfloat16); block()",
        "torch.set_default_device('meta'); block()",
        "with torch.device('meta'): block()",
        "with torch.inference_mode(): block()",
        "with torch.autocast('cpu'): block()",
        "with FakeTensorMode(): block()",
        "with Doubling(): block()",
        "with ptac.disabled(): block()",
        "torch.func.vmap(lambda x: [block(), x][1])(torch.ones(2))",
    ],
)
def test_what_surrounds_the_first_enable_teaches_nothing(around: str) -> None:
    # A default device is a function mode, which lean call paths keep out of.
    plain = "set_default_device" not in around
    switching.python(AMBIENT.format(around=around, plain=plain))


def test_samples_of_another_kind_are_refused() -> None:
    with ptac.enable():
        pass
    x, long = torch.ones(64), torch.ones(128)
    for wrong in (x.double(), x.half(), long, long[::2], x.long()):
        for samples in ((x, wrong), (wrong, x)):
            with pytest.raises(TypeError, match="contiguous"):
                _C.learn_sqrt(*samples)
            with pytest.raises(TypeError, match="contiguous"):
                _C.learn_fma(x, samples[0], 0.5, samples[1])
    with pytest.raises(TypeError, match="contiguous"):
        _C.learn_fma(x.double(), x.double(), 0.5, x.double())


def test_enabling_first_lifts_no_pin() -> None:
    program = """
import torch, pai_torchacc as ptac
from pai_torchacc import _C, _host
_host.load()
assert _C.pin("sgd_step", "scalar") is None
ptac.enable()
assert _C.pin("sgd_step", None) == "scalar"
assert _C.pin("adam_step", None) is None
"""
    switching.python(program)


BEFORE = """
import sys
import torch
from torch import nn
from pai_torchacc import _C, _host

if len(sys.argv) > 1:
    _host.load()
x, w = torch.ones(2, 3), torch.ones(4, 3, requires_grad=True)
layer, target = nn.Linear(3, 4), torch.tensor([0, 1])
sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
for call in (
    lambda: _C.saved_release(x, None),
    lambda: _C.saved_unpack(x),
    lambda: _C.cross_entropy(x, target, None, 1, -100, 0.0),
    lambda: _C.linear_module(layer, x),
    lambda: _C.sequential(nn.Sequential(layer), x),
):
    try:
        call()
    except TypeError as error:
        print(str(error).partition(",")[0])
holder = _C.saved_pack(w)
assert _C.saved_unpack(holder) is w
_C.saved_release(holder, None)
assert holder.tensor is None
assert _C.linear_act(x, w, None, 0) is None
assert _C.sequential({"0": layer}, x).shape == (2, 4)
assert _C.optimizer_group("sgd", {}, sgd.param_groups[0], 1.0, None) == 0
assert _C.optimizer_step("sgd", sgd, 1.0, None) is False
assert _C.zero_grads(sgd.param_groups) is False
print("alive")
"""


@pytest.mark.parametrize("loaded", [[], ["load"]])
def test_functions_before_a_switch_has_been_on(loaded: list[str]) -> None:
    run = subprocess.run(
        [sys.executable, "-c", BEFORE, *loaded],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    *errors, last = run.stdout.splitlines()
    assert (last, run.returncode) == ("alive", 0), run.stderr
    assert errors == [
        "a holder is expected",
        "a holder is expected",
        *["'NoneType' object is not callable"] * 2,
        "children are a plain dict",
    ]
