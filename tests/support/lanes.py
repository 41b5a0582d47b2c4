"""How long each file's tests took, at the end of the output."""

from __future__ import annotations

from collections import defaultdict

import pytest

_seconds: dict[str, float] = defaultdict(float)
_counts: dict[str, int] = defaultdict(int)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up set-up, call and tear-down of a file's tests."""
    lane = report.nodeid.partition("::")[0]
    _seconds[lane] += report.duration
    _counts[lane] += report.when == "call"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print a line a file, the slowest first."""
    terminalreporter.section("lanes")
    for lane in sorted(_seconds, key=_seconds.__getitem__, reverse=True):
        terminalreporter.line(
            f"{lane:32} {_counts[lane]:6} tests {_seconds[lane]:8.1f} s"
        )
