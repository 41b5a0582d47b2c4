"""Tracebacks of the user's own errors, without the frames of our stand-ins.

A stand-in catches what leaves it, drops its frames from the traceback and raises again
without an argument, which adds no frame. ``PTAC_TRACEBACK=full`` keeps them.
"""

from __future__ import annotations

import os
from pathlib import Path

_HERE = str(Path(__file__).parent) + os.sep


def hide(error: BaseException) -> None:
    """Drop the frames of this package that the traceback begins with."""
    trace = error.__traceback__
    if os.environ.get("PTAC_TRACEBACK") == "full":
        return
    while trace and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    error.__traceback__ = trace
