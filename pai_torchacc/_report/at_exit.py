"""The report that a process leaves when it ends.

``PTAC_REPORT`` says where: ``stderr`` or a file, whose name is taken from the folder
that was current when the program started. A name that ends in ``.json`` gets the
document.

Of several processes the first, in which ``run`` or ``enable()`` was called, writes
FILE.json. Forked children, those of multiprocessing and, under ``run``, all that the
script starts write FILE.PID.json beside it, and on stderr they name their process. So
does one that finds FILE.json written by another since it started, as happens to the
workers of torchrun. A forked child that ends by ``os._exit()``, as those of
multiprocessing and of DataLoader do, leaves none; one that ends in another way has
counted on from where its parent was.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

log = logging.getLogger("pai_torchacc")

FIRST_PROCESS = "PTAC_RUN_PID"
"""The variable by which ``run`` tells the processes it starts which was the first."""

_asked: set[str] = set()
_pid = 0
_folder = ""
_started_ns = time.time_ns()


def note_start() -> None:
    """Remember what the program may change: its process and its folder."""
    global _pid, _folder  # noqa: PLW0603
    if _pid:
        return
    _pid = os.getpid()
    with suppress(OSError):  # somebody removed the folder
        _folder = str(Path.cwd())


def ask(variable: str = "PTAC_REPORT") -> None:
    """At exit, write the report where this variable says then, if it says."""
    note_start()
    if variable not in _asked:
        _asked.add(variable)
        atexit.register(_write_where, variable)


def _write_where(variable: str) -> None:
    if where := os.environ.get(variable):
        write(where)


def write(where: str, is_json: bool = False) -> None:
    """Write the report to ``stderr`` or a file; trouble is a line in the log."""
    from pai_torchacc import _report

    try:
        if where == "stderr":
            heading = "" if _is_first() else f"process {os.getpid()}: "
            print(heading + _report.report(), file=sys.stderr)
        else:
            is_json = is_json or where.endswith(".json")
            text = _report.report("json" if is_json else "text")
            _write_file(Path(_folder, where), text + "\n")
    except (OSError, ValueError) as error:  # ValueError: stderr is closed
        log.error("pai_torchacc: the report could not be written: %s", error)


def _is_first() -> bool:
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing and multiprocessing.parent_process():
        return False
    own = os.getpid()
    return own == _pid and os.environ.get(FIRST_PROCESS, str(own)) == str(own)


def _write_file(path: Path, text: str) -> None:
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a device or a pipe
    elif not _is_first() or not _replace(path, text):
        own = path.with_name(f"{path.stem}.{os.getpid()}{path.suffix}")
        own.write_text(text, encoding="utf-8")


def _replace(path: Path, text: str) -> bool:
    """Write unless another process has since this one started."""
    import fcntl  # which Windows lacks, where the package still imports

    with path.open("a", encoding="utf-8") as file:
        with suppress(OSError):  # not every file system has locks
            fcntl.flock(file, fcntl.LOCK_EX)
        found = path.stat()
        if found.st_size and found.st_mtime_ns > _started_ns:
            return False
        file.truncate(0)
        file.write(text)
        file.flush()
        return True
