"""Our frames and the user's: warnings point to the user's line, tracebacks end there.

A stand-in catches what leaves it, drops its frames from the traceback and raises again
without an argument, which adds no frame. ``PTAC_TRACEBACK=full`` keeps them.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

_HERE = str(Path(__file__).parent) + os.sep
_INSIDE = "pai_torchacc."

said: set[str] = set()  # not to be said again


def hide(error: BaseException) -> None:
    """Drop the frames of this package that the traceback begins with."""
    trace = error.__traceback__
    if os.environ.get("PTAC_TRACEBACK") == "full":
        return
    while trace and _is_ours(trace.tb_frame):
        trace = trace.tb_next
    error.__traceback__ = trace


def warn_once(text: str, key: str | None = None) -> None:
    """Give a RuntimeWarning at the line outside this package that led here.

    Not a second one of the same ``key``, which is the text unless said otherwise.
    """
    if (key or text) not in said:
        said.add(key or text)
        warnings.warn(text, RuntimeWarning, stacklevel=_level_outside())


def _level_outside() -> int:
    level, frame = 1, sys._getframe(1)
    while frame.f_back and _is_ours(frame):
        level, frame = level + 1, frame.f_back
    return level


def _is_ours(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))  # stand-ins have the file of stock's
    return frame.f_code.co_filename.startswith(_HERE) or module.startswith(_INSIDE)
