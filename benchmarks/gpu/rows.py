"""What is written: a line a measurement, as soon as it is there."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.timing import Setting, stock
from pai_torchacc.bench.measure import Timing, environment
from pai_torchacc.bench.measure_cuda import is_emulated
from pai_torchacc.bench.tables import header

EMULATED = "emulated"


@dataclass(frozen=True)
class Row:
    """One variant of one case."""

    section: str
    case: str
    dtype: str
    variant: str
    """stock, ours, a rival's name; of a device: measured."""
    served: str
    """Of ours: yes, in part, or why not, by our counters."""
    best_us: float = 0.0
    median_us: float = 0.0
    ratio: float = 0.0
    """Stock's best time divided by this one's; 0: no time of stock's."""
    gb_s: float = 0.0
    """Bytes that the operation has to move, by construction, by its best time."""
    copy_share: float = 0.0
    """Of what the device's own copy was measured at."""
    tflop_s: float = 0.0
    launches: int = 0
    note: str = ""


def row(
    head: tuple[str, str, torch.dtype, str],
    found: str,
    timing: Timing,
    rival: Timing,
    n_bytes: float,
    flops: float,
    setting: Setting,
) -> Row:
    """What a timing says of the device."""
    section, case, dtype, variant = head
    gb_s = n_bytes / timing.best / 1e9
    return Row(
        section,
        case,
        named(dtype),
        variant,
        found,
        timing.best * 1e6,
        timing.median * 1e6,
        rival.best / timing.best,
        gb_s,
        gb_s / setting.copy_gb_s if setting.copy_gb_s else 0.0,
        flops / timing.best / 1e12,
    )


def failed(section: str, case: str, dtype: str, error: Exception) -> Row:
    """A case that ended with an error, which the rest goes on after."""
    stock()
    torch.cuda.empty_cache()
    return Row(section, case, dtype, "", "", note=f"failed: {first_line(error)}")


def first_line(error: Exception) -> str:
    """What kind of error it is, and the first line of what it says."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"


def named(dtype: torch.dtype) -> str:
    """As torch has it, without torch's name."""
    return str(dtype).removeprefix("torch.")


def facts() -> dict[str, str]:
    """What figures depend on: the machine, and its device."""
    if is_emulated():
        device = f"{EMULATED}: times mean nothing"
    elif torch.cuda.is_available():
        p = torch.cuda.get_device_properties(0)
        gib = p.total_memory / 2**30
        device = f"{p.name}, {p.multi_processor_count} SM, {gib:.0f} GiB"
    else:
        device = "none"
    return {**environment(), "cuda": str(torch.version.cuda), "device": device}


class Writer:
    """Rows go to a CSV and a JSON file one by one, so that a cut run keeps them."""

    def __init__(
        self, csv_path: str | None, json_path: str | None, show: Callable[[Row], None]
    ):
        self.rows: list[Row] = []
        self._show, self._json = show, json_path
        self._note = EMULATED if is_emulated() else ""
        self._facts = facts()
        self._csv = Path(csv_path) if csv_path else None
        if self._csv:
            names = ",".join(f.name for f in fields(Row))
            head = header(self._facts, "benchmarks")
            self._csv.write_text(f"{head}{names}\n", encoding="utf-8")

    def add(self, row: Row) -> None:
        """Write it at once."""
        if self._note:
            note = "; ".join(part for part in (self._note, row.note) if part)
            row = Row(**asdict(row) | {"note": note})
        self.rows.append(row)
        if self._csv:
            with self._csv.open("a", newline="", encoding="utf-8") as file:
                values = (
                    float(f"{v:.4g}") if isinstance(v, float) else v
                    for v in asdict(row).values()
                )
                csv.writer(file, lineterminator="\n").writerow(values)
        if self._json:
            text = json.dumps(self.document(), indent=2) + "\n"
            Path(self._json).write_text(text, encoding="utf-8")
        self._show(row)

    def document(self) -> dict[str, Any]:
        """All rows so far."""
        return {"environment": self._facts, "rows": [asdict(r) for r in self.rows]}
