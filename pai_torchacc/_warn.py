"""Warnings that point to the user's line, each said once in a process."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from pathlib import Path

_HERE = str(Path(__file__).parent) + os.sep

_said: set[str] = set()

VARIABLES = (
    "PTAC_CALIBRATION",
    "PTAC_CPU_ISA",
    "PTAC_DISABLE",
    "PTAC_ENABLE",
    "PTAC_NUMERICS",
    "PTAC_REPORT",
    "PTAC_TRACEBACK",
    "PTAC_VERIFY",
)
"""What users may set; others of the prefix are of the package and of its tests."""

_OURS = ("PTAC_HIDE_SYMBOLS", "PTAC_RUN_PID", "PTAC_REQUIRE_GPU")
_OURS_BEGIN = ("PTAC_TEST_", "PTAC_BENCH_")


def once(text: str, key: str | None = None) -> None:
    """Give a RuntimeWarning at the line outside this package that led here.

    Not a second one of the same ``key``, which is the text unless said otherwise.
    """
    if (key or text) not in _said:
        _said.add(key or text)
        warnings.warn(text, RuntimeWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(_HERE):
        level, frame = level + 1, frame.f_back
    return level


def unknown_variables() -> list[str]:
    """A sentence for each ``PTAC_*`` variable of the environment that nothing reads."""
    return [
        f"{name} is no variable of pai_torchacc; did you mean {_nearest(name)}?"
        for name in sorted(os.environ)
        if name.startswith("PTAC_") and not _is_known(name)
    ]


def _is_known(name: str) -> bool:
    return name in (*VARIABLES, *_OURS) or name.startswith(_OURS_BEGIN)


def _nearest(name: str) -> str:
    return difflib.get_close_matches(name, VARIABLES, n=1, cutoff=0.0)[0]
