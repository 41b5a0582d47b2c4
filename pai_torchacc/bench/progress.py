"""Progress that is visible with and without a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO, TypeVar

from rich.console import Console
from rich.progress import Progress

T = TypeVar("T")

EVERY_S = 5.0
"""Without a terminal: the least time between two lines."""


class Steps:
    """A bar on a terminal; elsewhere lines on stderr, at most one in five seconds.

    Parameters
    ----------
    total : float
        What all steps together come to.
    screen : rich.console.Console, optional
        Where the bar goes, and what is printed meanwhile. Default: a console on stdout.
    lines : text file, optional
        Where lines go without a terminal. Default: stderr.
    """

    def __init__(
        self,
        total: float,
        screen: Console | None = None,
        lines: TextIO | None = None,
        every_s: float = EVERY_S,
    ):
        self._total, self._done = total, 0.0
        self._lines = lines or sys.stderr
        self._every_s = every_s
        self._said_at = float("-inf")
        self._bar = (
            Progress(console=screen) if (screen or Console()).is_terminal else None
        )
        self._task = self._bar.add_task("", total=total) if self._bar else None

    def __enter__(self) -> Steps:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, what: str) -> None:
        """Say which step comes now."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=what)
        elif time.monotonic() - self._said_at >= self._every_s:
            self._said_at = time.monotonic()
            share = self._done / self._total if self._total else 1.0
            print(f"{share:4.0%} {what}", file=self._lines, flush=True)

    def end(self, amount: float = 1.0) -> None:
        """Add what the step came to."""
        self._done += amount
        if self._bar and self._task is not None:
            self._bar.advance(self._task, amount)


def shown(measure: Callable[[Callable[[str, float], None]], Iterable[T]]) -> list[T]:
    """All that is measured, while a bar shows what it tells of its progress.

    ``measure`` is given a function to call with what comes next, and the share of the
    whole that this is.
    """
    with Steps(total=1.0) as steps:

        def progress(what: str, share: float) -> None:
            steps.begin(what)
            steps.end(share)

        return list(measure(progress))
