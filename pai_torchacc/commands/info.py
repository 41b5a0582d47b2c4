"""``python -m pai_torchacc info``: what there is on this machine."""

from __future__ import annotations

import os
from typing import Any

from pai_torchacc import _features, _host, _report, calibration
from pai_torchacc.calibration import in_use


def document() -> dict[str, Any]:
    """Versions, CPU, the table that would decide, operators with their rows."""
    try:
        c = _host.load()
        lean, rounding = _host.has_lean_paths(), _host.knows_rounding()
    except _host.Unavailable as error:
        return {"versions": _report.versions(), "unavailable": str(error)}
    import torch

    table, of_cuda = in_use.find(c, os.environ.get("PTAC_CALIBRATION") or None)
    points, _ = calibration.points(table, c.operators(), "close")
    symbols = c.symbols()
    return {
        "versions": _report.versions() | _report.tables(table, of_cuda),
        "threads": torch.get_num_threads(),
        "lean_paths": lean,
        "rounding_known": rounding,
        "missing_symbols": sorted(n for n, found in symbols.items() if not found),
        "switches": list(_features.names()),
        "operators": {
            name: {
                "rows": {row: level for row, level, can_run, _ in rows if can_run},
                "calibrated": sum(p[0] == name for p in points),
                "accelerated": sum(p[0] == name and p[5] is not None for p in points),
            }
            for name, _, rows in c.operators()
        },
    }


def as_text(content: dict[str, Any]) -> str:
    """The document for people."""
    v = content["versions"]
    if "unavailable" in content:
        return (
            f"pai_torchacc {v['pai_torchacc']}, Python {v['python']}\n"
            f"nothing can be accelerated: {content['unavailable']}"
        )
    lines = [
        f"pai_torchacc {v['pai_torchacc']}, torch {v['torch']}, Python {v['python']}",
        f"CPU {v['cpu']}, instruction set {v['isa']}",
        f"threads {content['threads']}, calibration table {_report.table_names(v)}",
        f"switches: {', '.join(content['switches'])}",
        "lean call paths: " + ("yes" if content["lean_paths"] else "no"),
    ]
    if content["missing_symbols"]:
        lines.append("not in this torch: " + ", ".join(content["missing_symbols"]))
    lines += ["", "operator                      rows, calibrated places accelerated"]
    for name, entry in content["operators"].items():
        rows = ", ".join(f"{row} ({level})" for row, level in entry["rows"].items())
        places = f"{entry['accelerated']} of {entry['calibrated']}"
        lines.append(f"{name:28}  {rows or 'counted only'}; {places}")
    return "\n".join(lines)
