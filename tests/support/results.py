"""Files of figures that benchmarks write."""

from __future__ import annotations

import csv
from pathlib import Path


def rows_of(file: Path) -> list[dict[str, str]]:
    """A CSV's rows; lines that begin with # say where it was made."""
    lines = file.read_text().splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))
