"""Machine code for CUDA kernels: who makes it, when, and what the status says of it.

Nothing here waits in a user's call, and nothing runs before one comes: the first call
that a unit (a ``.cu`` file) would serve runs stock, and has a thread of the extension's
provide the unit. The thread ends when nothing is wanted any more. The driver is not
touched before that either, so programs that fork before they use CUDA still can.
"""

from __future__ import annotations

import atexit
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pai_torchacc.cuda_kernels import nvrtc, providing, shipped
from pai_torchacc.memory_pool.cuda import DRIVER_FILES

_PATIENCE_S = 30
"""How long the end of the program waits for a kernel that is being compiled."""


_users: set[str] = set()
"""Switches that are on and have kernels."""


def install(c: Any, user: str = "operator_fusion") -> None:
    """Have units provided from now on, as calls want them.

    Where the program uses CUDA already, those with a fat binary need no compiler and
    are wanted at once.
    """
    _users.add(user)
    state = providing.state
    if not state.is_on:
        state.is_on = True
        atexit.register(_end)
    c.cuda_when_wanted(partial(providing.run, c))
    torch, package = sys.modules["torch"], shipped.contents()
    if package and package.has_fat_binaries() and torch.cuda.is_initialized():
        for name in c.cuda_units():
            c.cuda_want(name)


def remove(c: Any, user: str = "operator_fusion") -> None:
    """No more, where no other user is left; what is being compiled is the last.

    Code that the driver has stays loaded: calls and CUDA graphs may hold it.
    """
    _users.discard(user)
    if providing.state.is_on and not _users:
        providing.state.is_on = False
        atexit.unregister(_end)
        c.cuda_when_wanted(None)


def _end() -> None:
    # NVRTC's own destructors run later and should not meet its compiler at work.
    providing.state.is_on = False
    providing.wait(_PATIENCE_S)


def reason(torch: Any) -> str | None:
    """Why no kernel can be provided here, as far as that shows without the driver."""
    if not any(Path(f).exists() for f in DRIVER_FILES):
        return "no NVIDIA driver"
    package = shipped.contents()
    if package is None:
        return "the package was built without its kernels"
    if not package.has_fat_binaries() and not nvrtc.has_file(torch):
        return providing.NOTHING_COMPILES
    return None


def status(c: Any) -> dict[str, Any]:
    """``cuda_kernels``: of each unit that was asked for, what became of it.

    Its state, where its code is from, or why there is none. ``cache`` says why nothing
    was kept on disk; ``reason``, why there can be none.
    """
    return {"cuda_kernels": {"reason": reason(sys.modules["torch"])} | _of_units(c)}


def _of_units(c: Any) -> dict[str, Any]:
    outcomes = providing.state.outcomes
    units: dict[str, dict[str, str]] = {}
    for name, what in c.cuda_units().items():
        if what == "unasked":
            continue
        outcome = outcomes.get(name, providing.Outcome())
        entry = {"state": what, "from": outcome.origin, "reason": outcome.trouble}
        units[name] = {k: v for k, v in entry.items() if v is not None}
    found: dict[str, Any] = {"units": units} if units else {}
    uncached = [o.uncached for o in outcomes.values() if o.uncached]
    if uncached:
        found["cache"] = uncached[-1]
    return found


def remarks(c: Any) -> list[str]:
    """A sentence for the units that came to nothing, by their reasons."""
    reasons: dict[str, list[str]] = {}
    for name, entry in sorted(_of_units(c).get("units", {}).items()):
        if entry["state"] == "broken":
            first = (entry.get("reason") or "unknown").partition("\n")[0]
            reasons.setdefault(first, []).append(name)
    return [
        f"CUDA kernels that run stock, {why}: {', '.join(names)}"
        for why, names in reasons.items()
    ]
