"""Tables of text."""

from __future__ import annotations

from collections.abc import Container, Sequence


def aligned(
    rows: Sequence[Sequence[str]], right: Container[int] = (), between: str = "  "
) -> list[str]:
    """A line for each row; columns of these numbers stand at the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        between.join(
            cell.rjust(w) if i in right else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
