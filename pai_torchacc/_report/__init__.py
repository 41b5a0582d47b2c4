"""The report, as a table for people and as JSON for programs.

The JSON document is a public interface; docs/report.md describes it. Its ``schema``
number changes when a key changes its meaning or goes away.
"""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING, Any, Literal

from pai_torchacc import _counters, _features, _host, _options, _switch
from pai_torchacc._report import page_faults, verdict
from pai_torchacc._table import aligned
from pai_torchacc._version import __version__
from pai_torchacc.calibration import in_use

if TYPE_CHECKING:
    from pai_torchacc.calibration import Table

SCHEMA = 1

LEAST_TIMED = 5
"""Timed calls below which nothing is said of the others."""

_ESTIMATED = ("served", "saved", "forwarded")

_graphs_before = 0


def report(format: Literal["text", "json"] = "text", reset: bool = False) -> str:
    """What ran accelerated, what was forwarded and why.

    Parameters
    ----------
    format : {"text", "json"}
        An aligned table, or the document that docs/report.md describes, as JSON text.
    reset : bool
        Start counting anew after this report.
    """
    if format not in ("text", "json"):
        raise ValueError(f"format={format!r}; there are: text, json")
    content = document()
    if reset:
        _reset()
    return json.dumps(content, indent=2) if format == "json" else Report(content)


class Report(str):
    """The text of a report; notebooks show it as a table."""

    __slots__ = ("content",)

    def __new__(cls, content: dict[str, Any]) -> Report:
        """Write the text of a document."""
        text = super().__new__(cls, as_text(content))
        text.content = content
        return text

    def _repr_html_(self) -> str:
        from pai_torchacc._report import html

        return html.of(self.content, str(self))

    def __getnewargs__(self) -> tuple[dict[str, Any]]:
        return (self.content,)


def document() -> dict[str, Any]:
    """The report as the structure that JSON shows."""
    features = _features.all_features()
    content = {
        "schema": SCHEMA,
        "verdict": {},
        "versions": versions(),
        "switches": _switch.status(),
        "ops": operators(),
        "memory": {"cpu": {"page_faults": page_faults.count()}},
        "sites": [],
        "bypassed": _bypassed(),
        "remarks": [remark for feature in features for remark in feature.remarks()],
    }
    for feature in features:
        _merge(content, feature.document())
    content["verdict"] = verdict.of(content)
    return content


def _merge(content: dict[str, Any], part: dict[str, Any]) -> None:
    for key, value in part.items():
        if isinstance(content.get(key), dict) and isinstance(value, dict):
            _merge(content[key], value)
        else:
            content[key] = value


def versions() -> dict[str, Any]:
    """Package, torch, Python, CPU, and the calibration table in use."""
    found: dict[str, Any] = {
        "pai_torchacc": __version__,
        "python": platform.python_version(),
        "torch": getattr(sys.modules.get("torch"), "__version__", None),
    }
    try:
        found["cpu"], found["isa"] = _host.extension().cpu()
    except _host.Unavailable as error:
        found["cpu"], found["isa"] = None, str(error)
    return found | tables(in_use.table(), in_use.table_on_cuda())


def tables(table: Table | None, of_cuda: Table | None) -> dict[str, Any]:
    """Calibration tables by their names, a GPU's where one is asked for."""
    found = {"calibration": table.name if table else None}
    if of_cuda:
        found["calibration_cuda"] = f"{of_cuda.name}, of {of_cuda.device}"
    return found


def table_names(versions: dict[str, Any]) -> str:
    """The same in words."""
    of_cuda = versions.get("calibration_cuda")
    return f"{versions['calibration']}" + (f"; on CUDA {of_cuda}" if of_cuda else "")


def operators() -> dict[str, dict[str, Any]]:
    """Per operator: level, calls, and where they went; how many were timed."""
    if (c := _host.compiled()) is None:
        return {}
    result = {}
    on_cuda: dict[str, list[Any]] = {}
    for name, row, level, *_ in [] if c.cuda_reason() else c.cuda_rows():
        on_cuda.setdefault(name, []).append((row, level, True, False))
    for name, _, rows in c.operators():
        accelerated, failed, forwarded, saved_ns, timed, *estimated_ns = (
            _counters.since_reset(c, name)
        )
        trouble = c.counters(name)[-1]
        entry: dict[str, Any] = {
            "level": _level([*rows, *on_cuda.get(name, ())]),
            "calls": accelerated + failed + sum(forwarded.values()),
            "accelerated": accelerated,
            "forwarded": forwarded,
            "failed": failed,
            # Shadow checks timed some calls on both sides; others are taken as alike.
            "ms_saved": accelerated * saved_ns / timed / 1e6
            if timed >= LEAST_TIMED
            else None,
            "timed": timed,
            "estimated_ms": {
                part: ns / 1e6
                for part, ns in zip(_ESTIMATED, estimated_ns, strict=True)
            },
        }
        if trouble:
            entry["trouble"] = trouble
        result[name] = entry
    return result


def _level(rows: list[tuple[str, str, bool, bool]]) -> str:
    """The furthest from stock's bits that a row may have been since the reset."""
    rank = _options.NUMERICS.index
    most = rank(_switch.furthest_numerics())
    levels = [level for _, level, can_run, _ in rows if can_run and rank(level) <= most]
    return max(levels, key=rank, default="exact")


def _reset() -> None:
    global _graphs_before  # noqa: PLW0603
    _graphs_before = _graphs()
    page_faults.reset()
    _switch.forget_numerics()
    if (c := _host.compiled()) is None:
        return
    _counters.discount(c, [name for name, _, _ in c.operators()])
    for feature in _features.all_features():
        feature.reset(c)


def _bypassed() -> dict[str, int]:
    """Graphs that torch.compile made: our stand-ins and overrides are not in there."""
    graphs = _graphs()
    if graphs >= _graphs_before:  # else torch has begun to count anew
        graphs -= _graphs_before
    return {"compiled": graphs} if graphs else {}


def _graphs() -> int:
    dynamo = sys.modules.get("torch._dynamo.utils")
    # Another thread may be importing it.
    stats = getattr(dynamo, "counters", {}).get("stats", {})
    return stats.get("unique_graphs", 0)


def as_text(content: dict[str, Any]) -> str:
    """The document as an aligned table."""
    v = content["versions"]
    lines = [
        *verdict.lines(content.get("verdict") or verdict.of(content)),
        "",
        f"pai_torchacc {v['pai_torchacc']}, torch {v['torch']}, Python {v['python']}, "
        f"{v['cpu']} ({v['isa']}), calibration {table_names(v)}",
    ]
    lines += [f"{name}: {_switch_line(e)}" for name, e in content["switches"].items()]
    lines += [f"bypassed: {why} ({n} graphs)" for why, n in content["bypassed"].items()]
    lines += content["remarks"]
    lines += ["", *_operator_table(content["ops"]), ""]
    for feature in _features.all_features():
        lines += feature.lines(content)
    faults = content["memory"]["cpu"]["page_faults"]
    return "\n".join([*lines, f"page faults since {page_faults.since()}: {faults}"])


def _switch_line(entry: dict[str, Any]) -> str:
    if entry["active"]:
        on_cuda = f"; on CUDA {entry['cuda']}" if "cuda" in entry else ""
        return f"on since {entry['since']}{on_cuda}"
    if entry["reason"]:
        return f"not active: {entry['reason']}"
    if "draining" in entry:
        return f"off, draining: {entry['draining']}"
    return "off"


def _saved_cell(entry: dict[str, Any]) -> str:
    if not entry["timed"]:
        return ""
    timed = f"({entry['timed']} timed)"
    saved = entry["ms_saved"]
    return timed if saved is None else f"{saved:.1f} {timed}"


_COLUMNS = (
    "operator", "level", "calls", "accelerated", "ms saved", "forwarded, failed"
)  # fmt: skip
_SAVED = _COLUMNS.index("ms saved")


def _operator_table(ops: dict[str, dict[str, Any]]) -> list[str]:
    rows = [_COLUMNS]
    for name, entry in ops.items():
        if not entry["calls"]:
            continue
        why = [f"{n} {r}" for r, n in sorted(entry["forwarded"].items())]
        if entry["failed"]:
            why.append(f"{entry['failed']} failed ({entry.get('trouble', '')})")
        calls, accelerated = str(entry["calls"]), str(entry["accelerated"])
        cells = (name, entry["level"], calls, accelerated, _saved_cell(entry))
        rows.append((*cells, ", ".join(why)))
    if len(rows) == 1:
        return ["no operator that this package knows has been called yet"]
    if not any(row[_SAVED] for row in rows[1:]):
        rows = [(*row[:_SAVED], *row[_SAVED + 1 :]) for row in rows]
    return aligned(rows, right=range(2, len(rows[0]) - 1))
