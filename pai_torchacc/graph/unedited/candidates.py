"""Modules that are called again and again come here, by ``call/candidates.c``."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from pai_torchacc import _host
from pai_torchacc.graph.memories import HOMES
from pai_torchacc.graph.planned import everything
from pai_torchacc.graph.unedited import automatic

_SWITCH = "graph_optimization"

_is_on: list[bool] = []


def install(c: Any) -> None:
    """Have modules be looked for."""
    from pai_torchacc.fusion import calls

    calls.share(c, _SWITCH)
    if not _is_on:
        _is_on.append(True)
        c.candidates_seek(_show)


def remove(c: Any) -> None:
    """Look for none, and take all plans away that nobody has asked for."""
    from pai_torchacc.fusion import calls

    if _is_on:
        _is_on.clear()
        c.candidates_seek(None)
    for one in list(everything):
        if isinstance(one, automatic.Automatic):
            one.remove()
    automatic.refused.clear()
    calls.release(_SWITCH)


def _show(module: nn.Module) -> None:
    """Plan the module, or leave it; nothing is raised, as the call is under way."""
    c = _host.loaded()
    if c is None:
        return
    try:
        if _is_candidate(module):
            automatic.Automatic(c, module).install()
            return
    except Exception as error:  # a module that goes ways of its own
        automatic.refused.append((type(module).__name__, repr(error)))
    c.candidates_refuse(module)


def _is_candidate(module: nn.Module) -> bool:
    """No leaf of torch's, which nothing is gained for, and all of it on the CPU."""
    is_of_torch = type(module).__module__.startswith(("torch.", "pai_torchacc."))
    if is_of_torch and not vars(module)["_modules"]:
        return False
    if sys.getprofile() is not None:
        return False
    return all(
        tensor is None or tensor.device.type == "cpu"
        for one in module.modules()
        for home in HOMES
        for tensor in vars(one)[home].values()
    )
