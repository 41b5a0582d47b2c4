"""What tests of kernel rows share: the program that runs them on random calls.

``tests/csrc/checkrows/checkrows.c`` runs each row of each operator on
``PTAC_TEST_CASES`` calls (default 300), from ``PTAC_TEST_SEED`` (default 1). It prints
the seed and, for a failure, the command that repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path

import native

CASES = int(os.environ.get("PTAC_TEST_CASES", "300"))
SEED = os.environ.get("PTAC_TEST_SEED", "1")

DRIVER = (
    *("arena", "checkrows", "counting", "faults", "judge", "narrow", "random"),
    *("testcall", "threads", "timing", "trial"),
)
"""The program's own files."""


def generators() -> list[Path]:
    """The files that make calls up, one a family of operators."""
    return sorted((native.TESTS / "ops").rglob("gen_*.c"))


def run(program: Path, cases: int) -> None:
    """Run so many calls of each operator; fails where a row does."""
    command = [str(program), "--seed", SEED, "--cases", str(cases)]
    print(native.run(command, timeout=300 + cases))
