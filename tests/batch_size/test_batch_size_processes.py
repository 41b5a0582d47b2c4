"""Trials of find_batch_size() that fail, hang, crash or are interrupted.

Where the program itself has to be interrupted, it runs in an interpreter of its own.
Every wait ends after a bounded time.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import switching
import torch

import pai_torchacc as ptac
from pai_torchacc.batch_size.errors import TrialTraceback

PATIENCE_S = 60


def find(step: Callable[[Any], object], **options: Any) -> Any:
    defaults: dict[str, Any] = {"seconds": 0.01, "timeout": PATIENCE_S, "largest": 64}
    return ptac.find_batch_size(step, torch.zeros, **{**defaults, **options})


def works_on(batch: torch.Tensor) -> None:
    for _ in range(20_000):
        pass


class Refused(Exception):
    """With more than a message, and a constructor of its own."""

    def __init__(self, code: int, *, reason: str):
        super().__init__(code)
        self.reason = reason

    def __reduce__(self) -> Any:
        return _refused, (self.args[0], self.reason)


def _refused(code: int, reason: str) -> Refused:
    return Refused(code, reason=reason)


def test_error_keeps_class_message_and_attributes() -> None:
    def inner_function(batch: torch.Tensor) -> None:
        raise Refused(17, reason="no Tuesday")

    with pytest.raises(Refused) as caught:
        find(inner_function)
    assert caught.value.args == (17,) and caught.value.reason == "no Tuesday"
    cause = caught.value.__cause__
    assert isinstance(cause, TrialTraceback)
    assert "in inner_function\n" in str(cause)
    assert "with a batch of 2" in caught.value.__notes__[0]


def test_error_of_a_class_that_cannot_be_pickled() -> None:
    class Local(LookupError):
        def __init__(self, one: str, two: str):
            super().__init__(f"{one} and {two}")

    def step(batch: torch.Tensor) -> None:
        raise Local("salt", "pepper")

    with pytest.raises(Local, match=r"^salt and pepper\n"):
        find(step)


def test_error_of_a_class_that_only_the_trial_knows() -> None:
    def step(batch: torch.Tensor) -> None:
        raise type("Sudden", (ValueError,), {})("now")

    with pytest.raises(RuntimeError, match=r"^Sudden: now\n"):
        find(step)


def test_error_at_a_larger_batch() -> None:
    def step(batch: torch.Tensor) -> None:
        works_on(batch)
        if len(batch) >= 8:
            torch.zeros(3) + torch.zeros(4)

    with pytest.raises(RuntimeError, match=r"size of tensor a \(3\)") as caught:
        find(step)
    assert "with a batch of 8" in caught.value.__notes__[0]


def test_error_of_make_batch() -> None:
    def make_batch(n: int) -> torch.Tensor:
        return {2: torch.zeros(2)}[n]

    with pytest.raises(KeyError, match="4"):
        ptac.find_batch_size(works_on, make_batch, seconds=0.01)


@pytest.mark.parametrize("text", ["the disk is out of memory", "CUDA out of memory"])
def test_what_only_sounds_like_memory_is_none(text: str) -> None:
    def step(batch: torch.Tensor) -> None:
        raise RuntimeError(text)

    with pytest.raises(RuntimeError, match=f"^{text}\n"):
        find(step)


def test_exit_of_the_step() -> None:
    with pytest.raises(SystemExit) as caught:
        find(lambda batch: sys.exit(3))
    assert caught.value.code == 3


def test_input_of_the_step_ends() -> None:
    """It would compete with the program for what is typed."""

    def step(batch: torch.Tensor) -> None:
        if not os.read(0, 1):
            raise EOFError

    with pytest.raises(EOFError):
        find(step)


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (lambda: os._exit(7), "exit status 7 ended the process in a trial"),
        (lambda: os.kill(os.getpid(), signal.SIGABRT), "signal 6 ended the process"),
    ],
    ids=["exit", "abort"],
)
def test_death_of_the_step(end: Callable[[], None], text: str) -> None:
    with pytest.raises(RuntimeError, match=f"{text}.* with a batch of 4"):
        find(lambda batch: works_on(batch) if len(batch) < 4 else end())


def test_what_the_system_kills_lacks_memory() -> None:
    """The kernel's killer gives no exception."""

    def step(batch: torch.Tensor) -> None:
        works_on(batch)
        if len(batch) >= 8:
            os.kill(os.getpid(), signal.SIGKILL)

    found = find(step)
    assert max(t.batch for t in found.trials if not t.trouble) < 8
    assert {t.trouble for t in found.trials if t.batch >= 8} == {
        "signal 9 ended the process"
    }


def wait_for_any(*_: Any) -> None:
    with suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.fixture(params=[signal.SIG_IGN, wait_for_any], ids=["ignored", "waited for"])
def children_end_unheard(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, request.param)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("children_end_unheard")
def test_program_that_waits_for_all_children() -> None:
    assert find(works_on, largest=8).trials[-1].batch == 8
    with pytest.raises(RuntimeError, match=r"ended the process in a trial"):
        find(lambda batch: os._exit(7))


def test_trial_runs_no_finalizers_of_the_program(
    tmp_path: Path, only_explicit_collections: None
) -> None:
    """Garbage of the program, as a folder that goes with its last user."""

    class Cycle:
        def __init__(self) -> None:
            self.own = self

        def __del__(self) -> None:
            (tmp_path / str(os.getpid())).touch()

    Cycle()
    find(lambda batch: gc.collect(), largest=2)
    assert [path.name for path in tmp_path.iterdir()] == [str(os.getpid())]


@pytest.mark.long
def test_program_without_standard_streams() -> None:
    """The pipe of a trial has their numbers then."""
    program = """
import os, sys
import torch
import pai_torchacc as ptac
os.close(0), os.close(1)
found = ptac.find_batch_size(lambda batch: None, torch.zeros, largest=4, seconds=0.01)
print([t.batch for t in found.trials][-1], file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=switching.environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[:1] == ["4"]


def is_gone(pid: int) -> bool:
    """Whether a process ends within a bounded time; a zombie has ended."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
    return False


def hangs(file: Path) -> Callable[[Any], None]:
    """A step that writes its process's id, and its own child's, and never ends."""

    def step(batch: Any) -> None:
        sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1)
        partly = file.with_suffix(".partly")
        partly.write_text(f"{os.getpid()} {sleeper.pid}")
        partly.rename(file)
        signal.pause()

    return step


def test_hang_ends_and_leaves_no_process(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    with pytest.raises(TimeoutError, match="3 seconds were over in a trial"):
        find(hangs(file), timeout=3)
    assert [is_gone(int(pid)) for pid in file.read_text().split()] == [True, True]


PROGRAM = """
import sys, torch
from pathlib import Path
from test_batch_size_processes import hangs
import pai_torchacc as ptac
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
step = hangs(Path(sys.argv[1]))
try:
    ptac.find_batch_size(step, torch.zeros)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "kill", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)]
)
def test_end_of_the_program_leaves_no_process(
    kill: signal.Signals, tmp_path: Path
) -> None:
    file = tmp_path / "pids"
    environment = switching.environment()
    here = f"{Path(__file__).parent}{os.pathsep}{environment['PYTHONPATH']}"
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(file)],
        env=environment | {"PYTHONPATH": here},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + PATIENCE_S
        while not file.exists() and time.monotonic() < until:
            assert program.poll() is None
        trial, grandchild = map(int, file.read_text().split())
        program.send_signal(kill)
        said, _ = program.communicate(timeout=PATIENCE_S)
        assert said == ("interrupted\n" if kill == signal.SIGINT else "")
        assert is_gone(trial)
        assert is_gone(grandchild)
    finally:
        program.kill()
        program.communicate()


@pytest.mark.long
def test_standard_output_of_the_program_is_its_own() -> None:
    """What it had written is not written twice, and trials' output is dropped."""
    program = """
import sys, torch
import pai_torchacc as ptac
sys.stdout.write("before ")
found = ptac.find_batch_size(
    lambda batch: print("x" * 100_000), torch.zeros, largest=8, seconds=0.01
)
print("after")
"""
    assert switching.python(program) == "before after\n"


def test_cuda_that_is_in_use_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state is torch's own; no such device is here."""
    monkeypatch.setattr(torch.cuda, "_initialized", True)
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)
    with pytest.raises(RuntimeError, match="CUDA is initialised in this process"):
        find(works_on)
