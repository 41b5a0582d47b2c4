"""The calibration table in use: found, checked, handed to the chooser."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pai_torchacc import calibration
from pai_torchacc._options import operator_names
from pai_torchacc.calibration import on_cuda

if TYPE_CHECKING:
    from pai_torchacc._config import Config

log = logging.getLogger("pai_torchacc")

_in_use: calibration.Table | None = None
_of_cuda: calibration.Table | None = None
_claims: set[tuple[str, str | None]] = set()


def table() -> calibration.Table | None:
    """The table that the chooser has been given."""
    return _in_use


def table_on_cuda() -> calibration.Table | None:
    """The table of a GPU that was asked for, whether or not one is here."""
    return _of_cuda


def claims() -> set[tuple[str, str | None]]:
    """Operators and the rows that serve any of their calls by it."""
    return _claims


def install(c: Any, config: Config) -> set[str]:
    """Hand the chooser its table; return the operators that numerics bars."""
    global _in_use, _of_cuda, _claims  # noqa: PLW0603
    table, of_cuda = find(c, config.calibration)
    points, barred = _points(c, table, config.numerics)
    c.install_table(points)
    _claims = {(point[0], point[5]) for point in points}
    _install_on_cuda(c, of_cuda, config)
    for new, old in ((table, _in_use), (of_cuda, _of_cuda)):
        if new and (old is None or old.name != new.name):
            _say_unknown(new)
    _in_use, _of_cuda = table, of_cuda
    return barred


_Decided = tuple[list[calibration.Point], set[str]]

_latest: tuple[calibration.Table, Any, _Decided] | None = None


def _points(c: Any, table: calibration.Table, numerics: str) -> _Decided:
    """What a table decides; kept, since a program may switch often."""
    global _latest  # noqa: PLW0603
    circumstances = numerics, c.cpu()
    if _latest is None or _latest[0] is not table or _latest[1] != circumstances:
        has_amx = "amx" in c.bf16_hardware()
        decided = calibration.points(table, c.operators(), numerics, has_amx=has_amx)
        _latest = table, circumstances, decided
    return _latest[2]


def _install_on_cuda(c: Any, table: calibration.Table | None, config: Config) -> None:
    """Hand the chooser the table of a GPU, or take it away."""
    if table is None or table.device is None or c.cuda_reason():
        c.install_cuda_table([], "")
    else:
        points = on_cuda.points(c, table, config.numerics)
        c.install_cuda_table(points, table.device)


def find(
    c: Any, path: str | None
) -> tuple[calibration.Table, calibration.Table | None]:
    """The calibration table for this CPU, and that of a GPU where one is asked for.

    What is asked for by its path is either. OSError, ValueError where the file cannot
    be read or is no table: the text says who asked for it.
    """
    asked = None if path is None else _read(path)
    if asked and asked.device is None:
        return asked, None
    model, isa = c.cpu()
    is_limited = bool(os.environ.get("PTAC_CPU_ISA"))
    return calibration.find(model, isa, is_limited), asked


def _read(path: str) -> calibration.Table:
    try:
        return calibration.read_table(Path(path))._replace(name=path)
    except OSError as error:
        text = f"{_who_asked(path)}: {error.strerror}"
        raise type(error)(error.errno, text, error.filename) from None
    except ValueError as error:
        raise ValueError(f"{_who_asked(path)}: {error}") from None


def _who_asked(path: str | None) -> str:
    by_variable = path is not None and path == os.environ.get("PTAC_CALIBRATION")
    return "PTAC_CALIBRATION" if by_variable else "calibration"


def _say_unknown(table: calibration.Table) -> None:
    if unknown := {m.op for m in table.measurements}.difference(operator_names()):
        names = ", ".join(sorted(unknown))
        log.warning("%s: operators unknown here are left out: %s", table.name, names)
