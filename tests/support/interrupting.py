"""Interrupts at chosen moments inside the package."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pai_torchacc as ptac

PACKAGE = str(Path(ptac.__file__).parent)


class Interrupt(KeyboardInterrupt):
    pass


def interrupted(change: Callable[[], object], k: int, where: str = PACKAGE) -> bool:
    """Interrupt at the k-th moment in files of a folder; whether there are so many.

    Python looks for signals where calls begin and where those of C functions end.
    """
    n = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal n
        is_moment = event in ("call", "c_return")
        if is_moment and frame.f_code.co_filename.startswith(where):
            n += 1
            if n == k:
                raise Interrupt

    sys.setprofile(profile)
    try:
        change()
    except Interrupt:
        pass
    finally:
        sys.setprofile(None)
    return n >= k
