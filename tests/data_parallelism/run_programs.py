"""Run every program on this rank, and write what came of each.

torchrun --nproc-per-node=2 tests/data_parallelism/run_programs.py FOLDER [NAME ...]
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import programs_beside  # noqa: F401  # which adds its own
import programs_whole  # noqa: F401  # so does this
from programs import PROGRAMS, RANK

import pai_torchacc as ptac
from pai_torchacc import _frames


def main(folder: Path, names: list[str]) -> None:
    """All of them, or those of these names."""
    found: dict[str, dict[str, Any]] = {}
    for name in names or PROGRAMS:
        try:
            found[name] = PROGRAMS[name]()
        except Exception:
            found[name] = {"traceback": traceback.format_exc()}
        ptac.disable()
        _frames.said.clear()  # the next may be warned of the same
    (folder / f"{RANK}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
