"""What the CSV files of measurements have in common."""

from __future__ import annotations

import csv
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def header(facts: Mapping[str, str], program: str, remarks: Iterable[str] = ()) -> str:
    """Comment lines that say what figures depend on, and which command made them."""
    lines = [f"{key}: {value}" for key, value in facts.items()]
    lines.append(f"command: python -m {program} {shlex.join(sys.argv[1:])}")
    return "".join(f"# {line}\n" for line in [*lines, *remarks])


def write_measurements(
    path: Path, head: str, columns: Sequence[str], measurements: Iterable[Any]
) -> None:
    """Write these fields of objects whose ``work`` may be the sizes of a product."""
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(head)
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for m in measurements:
            fields = [getattr(m, name) for name in columns]
            writer.writerow(
                "x".join(map(str, x)) if isinstance(x, tuple) else x for x in fields
            )
