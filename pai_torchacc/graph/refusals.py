"""Why a forward cannot be planned, and where in the program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import FrameType, TracebackType

import torch

_LIBRARIES = (
    f"{Path(torch.__file__).parent}{os.sep}",
    f"{Path(__file__).parents[1]}{os.sep}",
)


class CannotPlan(RuntimeError):
    """A call cannot be recorded for replay; the text says why, and where."""

    def __init__(self, reason: str, where: str = ""):
        self.reason, self.where = reason, where
        self.is_silent = False
        """Nothing is wrong: a gradient is to come, which is nobody's surprise."""
        self.is_of_first = False
        """Another call like this one may be recorded."""
        self.n_calls = 1
        """That were made eagerly because of it."""
        super().__init__(f"{where}: {reason}" if where else reason)


def where(frame: FrameType | None = None) -> str:
    """``file:line`` of the innermost frame that is neither torch's nor ours.

    From that frame on, or from the caller's.
    """
    frame = frame or sys._getframe(1)
    while frame is not None:
        if not is_of_a_library(frame):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def where_in(traceback: TracebackType | None) -> str:
    """``file:line`` of the innermost place of a traceback that is the program's."""
    found = ""
    while traceback is not None:
        if not is_of_a_library(traceback.tb_frame):
            found = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found


def is_of_a_library(frame: FrameType) -> bool:
    """Its function is torch's or ours, or Python's own."""
    return frame.f_code.co_filename.startswith((*_LIBRARIES, "<frozen"))
