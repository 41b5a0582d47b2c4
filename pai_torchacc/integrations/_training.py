"""What the callbacks have in common: enabled from begin to end, then a report."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pai_torchacc as ptac

Show = bool | Callable[[str], object]


class Acceleration:
    """Enabled between :meth:`begin` and :meth:`end`."""

    def __init__(self, features: tuple[str, ...], show: Show, options: dict[str, Any]):
        self._features, self._show, self._options = features, show, options
        self._handle: Any = None

    def begin(self) -> None:
        """Enable, unless it is on from a begin before."""
        if self._handle is None:
            self._handle = ptac.enable(*self._features, **self._options)
            self._handle.__enter__()

    def end(self, shows: bool) -> None:
        """Restore what was on before, and show the report if asked to."""
        if self._handle is None:
            return
        text = ptac.report() if shows and self._show else ""
        handle, self._handle = self._handle, None
        handle.__exit__(None, None, None)
        if text:
            (self._show if callable(self._show) else print)(text)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_handle": None}  # the process has it, not the object
