"""Why a forward cannot be planned, and where in the program."""

from __future__ import annotations

import os
import sys
from types import FrameType

_TORCH = f"{os.sep}torch{os.sep}"
_OURS = f"{os.sep}pai_torchacc{os.sep}"


class CannotPlan(RuntimeError):
    """A call cannot be recorded for replay; the text says why, and where."""

    def __init__(self, reason: str, where: str = ""):
        self.reason, self.where = reason, where
        super().__init__(f"{where}: {reason}" if where else reason)


def where(frame: FrameType | None = None) -> str:
    """``file:line`` of the innermost frame that is neither torch's nor ours.

    From that frame on, or from the caller's.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if _TORCH not in file and _OURS not in file and not file.startswith("<frozen"):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
