"""What sites have done, for the report.

The extension forgets its sites when the switch goes off; what they have done until then
is added up here.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from pai_torchacc._table import aligned

_WHY = (
    "something else is called",
    "what is between is seen",
    "left to stock by the operators",
)
"""Why modules were called one by one, in the order of the extension's enum."""

_LINES = 12
"""Of sites, that the text shows."""


@dataclasses.dataclass
class Row:
    """One site; ``pattern`` is what follows what there."""

    place: str
    function: str
    pattern: str
    hits: int = 0
    fallbacks: Counter[str] = dataclasses.field(default_factory=Counter)
    saved_ns: float = 0.0

    def entry(self) -> dict[str, Any]:
        """Give the report's."""
        return {
            "place": self.place,
            "function": self.function,
            "pattern": self.pattern,
            "hits": self.hits,
            "fallbacks": dict(self.fallbacks),
            "estimated_ms_saved": self.saved_ns / 1e6,
        }


_Rows = dict[tuple[str, str, int], Row]
"""By file, function and offset."""

_gone: _Rows = {}


def _add_live(c: Any, rows: _Rows) -> _Rows:
    for code, offset, line, kinds, hits, misses, saved_ns in c.sites_list():
        key = code.co_filename, code.co_qualname, offset
        place = f"{code.co_filename}:{line}"
        row = rows.setdefault(key, Row(place, code.co_qualname, ""))
        row.pattern = ", ".join(kinds)
        row.hits += hits
        row.fallbacks += Counter(dict(zip(_WHY, misses, strict=True)))
        row.saved_ns += saved_ns
    return rows


def keep(c: Any) -> None:
    """Take over what sites have done, which are about to be forgotten."""
    _add_live(c, _gone)
    c.sites_begin_anew()


def reset(c: Any) -> None:
    """Begin counting anew."""
    _gone.clear()
    c.sites_begin_anew()


def entries(c: Any) -> list[dict[str, Any]]:
    """All sites that were called since the last reset, those with most hits first."""
    kept = {
        key: dataclasses.replace(row, fallbacks=row.fallbacks.copy())
        for key, row in _gone.items()
    }
    used = (r for r in _add_live(c, kept).values() if r.hits or r.fallbacks)
    return [row.entry() for row in sorted(used, key=lambda row: (-row.hits, row.place))]


def lines(entries: list[dict[str, Any]]) -> list[str]:
    """The table of the text report: of sites that were hit, and how many were not."""
    hit = [e for e in entries if e["hits"]]
    if not hit:
        return []
    rows = [("site", "as one", "hits", "ms saved", "one by one")]
    for e in hit[:_LINES]:
        why = ", ".join(f"{n} {reason}" for reason, n in e["fallbacks"].items())
        saved = f"{e['estimated_ms_saved']:.1f}"
        rows.append((e["place"], e["pattern"], str(e["hits"]), saved, why))
    more = len(entries) - len(rows) + 1
    return [
        *aligned(rows, right=(2, 3)),
        *([f"{more} more sites in report('json')"] if more else []),
        "",
    ]
