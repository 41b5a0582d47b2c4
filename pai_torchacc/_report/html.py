"""The report as HTML, for notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

from pai_torchacc._report import verdict

_COLUMNS = ("operator", "level", "calls", "accelerated", "estimated ms saved", "stock")


def of(content: dict[str, Any], text: str) -> str:
    """A heading by the verdict, the table of operators, and the text to unfold."""
    first, *others = verdict.lines(content["verdict"])
    rows = [_row(op, e) for op, e in content["ops"].items() if e["calls"]]
    head = "".join(f"<th>{escape(column)}</th>" for column in _COLUMNS)
    table = f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""
    said = "".join(f"<br>{escape(line)}" for line in others)
    return (
        f"<div><p><b>{escape(first)}</b>{said}</p>{table}<details><summary>the whole "
        f"report</summary><pre>{escape(text)}</pre></details></div>"
    )


def _row(op: str, entry: dict[str, Any]) -> str:
    stock = ", ".join(f"{n} {why}" for why, n in sorted(entry["forwarded"].items()))
    if entry["failed"]:
        stock = f"{entry['failed']} failed; {stock}"
    saved = entry["estimated_ms"]["saved"]
    cells = (
        op,
        entry["level"],
        entry["calls"],
        entry["accelerated"],
        f"{saved:.1f}" if saved else "",
        stock,
    )
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
