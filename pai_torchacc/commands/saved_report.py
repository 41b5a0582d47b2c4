"""``python -m pai_torchacc report FILE``: a report that a process has left, as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pai_torchacc import _report
from pai_torchacc.commands.usage import UsageError

MOST_BYTES = 64 << 20


def read(file: str) -> dict[str, Any]:
    """The document of a file that ``PTAC_REPORT`` or ``run --json`` wrote.

    UsageError where it is no report, or one of another schema; OSError where it cannot
    be read.
    """
    with Path(file).open("rb") as opened:
        data = opened.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise UsageError(f"{file} is too large for a report")
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} is no report in JSON: {error}") from None
    schema = content.get("schema") if isinstance(content, dict) else None
    if schema != _report.SCHEMA:
        raise UsageError(
            f"{file} is no report of schema {_report.SCHEMA}: its schema is {schema!r}"
        )
    return content


def as_text(file: str, content: dict[str, Any]) -> str:
    """The report as a process would have printed it; UsageError where parts lack."""
    try:
        return _report.as_text(content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        text = f"{file} is no complete report: {type(error).__name__}: {error}"
        raise UsageError(text) from None
