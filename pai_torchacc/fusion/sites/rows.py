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


_gone: dict[tuple[str, str], Row] = {}
_since: dict[tuple[str, str], Row] = {}
"""What had been done at the last reset."""


def _add_live(c: Any, rows: dict[tuple[str, str], Row]) -> dict[tuple[str, str], Row]:
    for code, line, kinds, hits, misses, saved_ns in c.sites_list():
        place, pattern = f"{code.co_filename}:{line}", ", ".join(kinds)
        row = rows.setdefault((place, pattern), Row(place, code.co_qualname, pattern))
        row.hits += hits
        row.fallbacks += Counter(dict(zip(_WHY, misses, strict=True)))
        row.saved_ns += saved_ns
    return rows


def _copied() -> dict[tuple[str, str], Row]:
    return {
        key: dataclasses.replace(row, fallbacks=row.fallbacks.copy())
        for key, row in _gone.items()
    }


def keep(c: Any) -> None:
    """Take over what sites have done that are about to be forgotten."""
    _add_live(c, _gone)


def reset(c: Any) -> None:
    """Begin counting anew."""
    _since.clear()
    _since.update(_add_live(c, _copied()))


def entries(c: Any) -> list[dict[str, Any]]:
    """All sites that were called since the last reset, those with most hits first."""
    rows = _add_live(c, _copied())
    for key, before in _since.items():
        row = rows[key]
        row.hits -= before.hits
        row.fallbacks -= before.fallbacks
        row.saved_ns -= before.saved_ns
    used = (row for row in rows.values() if row.hits or row.fallbacks)
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
