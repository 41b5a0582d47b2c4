"""Switching acceleration on in tests, and counting what it did.

A calibration table decides at users' places. Tests do not depend on what some machine
measured: they pin a row of each operator, found through the extension's own list, so
that a new operator or row is tested unasked.
"""

from __future__ import annotations

import atexit
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import forkserver
import pytest

import pai_torchacc as ptac
from pai_torchacc import _C, calibration, fusion

ENVIRONMENT = (
    "PTAC_ENABLE",
    "PTAC_DISABLE",
    "PTAC_NUMERICS",
    "PTAC_VERIFY",
    "PTAC_REPORT",
    "PTAC_RUN_PID",
    "PTAC_CALIBRATION",
    "PTAC_CPU_ISA",
    "PTAC_HIDE_SYMBOLS",
)

FUSION = "operator_fusion"

T = TypeVar("T")

pinned: set[str] = set()
"""Operators that serve every call by one row now."""


_ALONE = ["scalar"]
"""The names of an operator's rows where it has no others."""


def runnable_rows(op: str) -> list[str]:
    """The rows of an operator that this CPU can run at level close."""
    rows = {name: rows for name, _, rows in _C.operators()}[op]
    return [name for name, level, can_run, _ in rows if can_run and level != "fast"]


def operators_with_rows() -> list[str]:
    """Operators of operator_fusion that can be accelerated on this machine.

    Those that have but their definition on the CPU are for CUDA: no call reaches it.
    """
    overridden = {op for _, op in _C.override_names()}
    reached = {
        name
        for name, _, rows in _C.operators()
        if name in overridden or [row[0] for row in rows] != _ALONE
    }
    return [n for n in fusion.operators(_C) if n in reached and runnable_rows(n)]


def best_row(op: str) -> str:
    """The row that tests run unless they choose."""
    row = _C.preferred_row(op)
    assert row, f"{op} has no row that this CPU can run"
    return row


def table_of(folder: Path, rows: Iterable[tuple[str, str]], ratio: float = 2) -> Path:
    """A calibration table that names a row of each operator at all its places."""
    kinds = {name: kinds for name, kinds, _ in _C.operators()}
    lines = [",".join(calibration.COLUMNS)]
    lines += [
        f"{op},{kind},float32,{n_threads},0,{row},{ratio},100"
        for op, row in rows
        for kind in kinds[op]
        for n_threads in (1, 2)
    ]
    path = folder / "table.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def named(folder: Path, ops: Iterable[str], row: str) -> AbstractContextManager[object]:
    """Operator fusion by a table that names this row alone."""
    path = table_of(folder, [(op, row) for op in ops])
    return ptac.enable("operator_fusion", calibration=str(path))


@contextmanager
def pins(ops: Iterable[str], row: str | None = None) -> Iterator[None]:
    """Serve every acceptable call of these operators by their best row, or this one."""
    mine = [op for op in ops if (row or runnable_rows(op)) and op not in pinned]
    try:
        for op in mine:
            _C.pin(op, row or best_row(op))
            pinned.add(op)
        yield
    finally:
        for op in mine:
            _C.pin(op, None)
            pinned.discard(op)


@contextmanager
def accelerated(
    *ops: str, row: str | None = None, **options: Any
) -> Iterator[ptac.Handle]:
    """Enabled, with a row for every call of these operators, or of all."""
    if ops:
        options.setdefault("include", ops)
    with ptac.enable(**options) as handle:
        assert handle, handle.reason
        with pins(ops or operators_with_rows(), row):
            yield handle


class Hits:
    """What an operator has counted since this was made."""

    def __init__(self, op: str):
        self.op = op
        self._before = _C.counters(op)

    @property
    def accelerated(self) -> int:
        return _C.counters(self.op)[0] - self._before[0]

    @property
    def failed(self) -> int:
        return _C.counters(self.op)[1] - self._before[1]

    @property
    def forwarded(self) -> dict[str, int]:
        before = self._before[2]
        now = _C.counters(self.op)[2]
        return {r: n - before.get(r, 0) for r, n in now.items() if n > before.get(r, 0)}

    def __repr__(self) -> str:
        return (
            f"<{self.op}: {self.accelerated} accelerated, {self.failed} failed, "
            f"forwarded {self.forwarded}>"
        )


def hits(op: str) -> Hits:
    """Count an operator's calls from now on."""
    return Hits(op)


def count_calls(patch: pytest.MonkeyPatch, owner: Any, name: str) -> list[None]:
    """Wrap a function of torch as users do; grows by an element a call."""
    original, calls = getattr(owner, name), []

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        calls.append(None)
        return original(*args, **kwargs)

    patch.setattr(owner, name, wrapper)
    return calls


def in_threads(
    call: Callable[[], T], times: int = 20, n_threads: int = 3
) -> Callable[[], list[T]]:
    """Call in threads from now on; what waits for them gives all that they found.

    Where acceleration ends meanwhile, calls that have begun end where they began; those
    after it go to stock.
    """
    found: list[T] = []

    def work() -> None:
        found.extend(call() for _ in range(times))

    threads = [threading.Thread(target=work) for _ in range(n_threads)]
    for thread in threads:
        thread.start()

    def results() -> list[T]:
        for thread in threads:
            thread.join()
        assert len(found) == times * n_threads, f"{len(found)} calls gave a result"
        return found

    return results


_forks = forkserver.Server()
atexit.register(_forks.stop)


def python(
    program: str, *args: str, expect: int = 0, fresh: bool = False, **env: str
) -> str:
    """Run a program as :func:`forked` or :func:`run_python` does; its standard output.

    In a fresh interpreter where that is asked for, or where variables other than
    ``PTAC_*`` are given, which libraries may read when they are loaded.
    """
    is_fresh = fresh or not all(name.startswith("PTAC_") for name in env)
    done = (run_python if is_fresh else forked)(["-c", program, *args], **env)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout


def forked(
    arguments: list[str], cwd: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """What :func:`run_python` gives, in a process that has imported torch already."""
    return _forks.run(arguments, environment() | env, cwd)


def environment() -> dict[str, str]:
    """Variables of this process without ``PTAC_*``; Python finds this package."""
    clean = {k: v for k, v in os.environ.items() if k not in ENVIRONMENT}
    tests = str(Path(__file__).parents[1])
    here = [str(Path(ptac.__file__).parents[1])]
    here += [folder for folder in sys.path if folder.startswith(tests)]
    clean["PYTHONPATH"] = os.pathsep.join([*here, os.environ.get("PYTHONPATH", "")])
    return clean


def run_python(
    arguments: list[str], cwd: Path | None = None, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run an interpreter that finds this package."""
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment() | env,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
