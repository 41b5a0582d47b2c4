"""The calibration table in use: found, checked, handed to the chooser."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from pai_torchacc import calibration
from pai_torchacc._options import operator_names

if TYPE_CHECKING:
    from pai_torchacc._config import Config

log = logging.getLogger("pai_torchacc")

_in_use: calibration.Table | None = None
_claims: set[tuple[str, str | None]] = set()


def table() -> calibration.Table | None:
    """The table that the chooser has been given."""
    return _in_use


def claims() -> set[tuple[str, str | None]]:
    """Operators and the rows that serve any of their calls by it."""
    return _claims


def install(c: Any, config: Config) -> set[str]:
    """Hand the chooser its table; return the operators that numerics bars."""
    global _in_use, _claims  # noqa: PLW0603
    table = find(c, config.calibration)
    points, barred = calibration.points(table, c.operators(), config.numerics)
    c.install_table(points)
    _claims = {(point[0], point[5]) for point in points}
    if _in_use is None or _in_use.name != table.name:
        _say_unknown(table)
    _in_use = table
    return barred


def find(c: Any, path: str | None) -> calibration.Table:
    """The calibration table for this CPU, or the one asked for by its path.

    OSError, ValueError where the file cannot be read or is no table: the text says who
    asked for it.
    """
    model, isa = c.cpu()
    is_limited = bool(os.environ.get("PTAC_CPU_ISA"))
    try:
        return calibration.find(model, isa, is_limited, path)
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
