"""Calls from Python, of modules and of functions of torch, through C."""

from __future__ import annotations

import functools
from typing import Any

from pai_torchacc.fusion.foreign import Shared

_SWITCH = "operator_fusion"

_ledger = Shared()
"""Calls of modules: of this switch, and of plans for unedited programs."""


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
    share(c, _SWITCH)
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
        _ledger.release(_SWITCH)

    sites.close(c)
    module_call.close(c)
    leaving.when_quiet(c, leave)


def share(c: Any, switch: str) -> None:
    """Have calls of modules come to C for a switch, until :func:`release`."""
    from pai_torchacc.fusion.calls import module_call

    if not _ledger.users:
        module_call.install(c, _ledger)
    elif switch == _SWITCH and switch not in _ledger.users:
        module_call.learn_leaves(c)
    _ledger.users[switch] = True


def release(switch: str) -> None:
    """Have them come no more, but for others' sake."""
    _ledger.release(switch)


def remarks() -> list[str]:
    """Who changed what we had."""
    from pai_torchacc.fusion.calls import entries

    return [*_ledger.remarks, *entries.remarks()]
