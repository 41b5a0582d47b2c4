"""Calls from Python, of modules and of functions of torch, through C."""

from __future__ import annotations

import functools
from typing import Any

from pai_torchacc.fusion.foreign import Yielding

_ledger = Yielding()


def install(c: Any) -> None:
    """Have calls come to us; :mod:`..sequential` and overrides come first.

    Where a switch has gone off and calls have not left yet, they stay.
    """
    from pai_torchacc.fusion import sites
    from pai_torchacc.fusion.calls import entries, leaving, module_call

    sites.close(c)
    is_quiet = c.windows_are_quiet()
    if not leaving.stay(c, functools.partial(install, c)):
        return
    if not len(_ledger):
        module_call.install(c, _ledger)
    module_call.open(c)
    if is_quiet:
        entries.install(c)
    sites.install(c)


def remove(c: Any) -> None:
    """Do nothing of our own any more, and leave as soon as no call needs us."""
    from pai_torchacc.fusion import sites
    from pai_torchacc.fusion.calls import entries, leaving, module_call

    def leave() -> None:
        entries.remove(c)
        _ledger.undo()

    sites.close(c)
    module_call.close(c)
    leaving.when_quiet(c, leave)


def remarks() -> list[str]:
    """Who changed what we had."""
    from pai_torchacc.fusion.calls import entries

    return [*_ledger.remarks, *entries.remarks()]
