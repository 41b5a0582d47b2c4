"""A Linear and the activation behind it, where both are all torch's own.

``nn.Sequential`` does the two in one, and with that passes over everything that torch
would have called in between. So the extension remembers what that is, and calls the
modules as ever as soon as one of them is another.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pai_torchacc.fusion.foreign import is_torchs_own

_CALLS: dict[str, tuple[type, list[tuple[Any, str]]]] = {
    "relu": (nn.ReLU, [(F, "relu"), (torch, "relu")]),
    "gelu": (nn.GELU, [(F, "gelu")]),
    "silu": (nn.SiLU, [(F, "silu"), (torch._C._nn, "silu")]),
    "tanh": (nn.Tanh, [(torch, "tanh")]),
    "sigmoid": (nn.Sigmoid, [(torch, "sigmoid")]),
}
"""By activation, its module and the functions that its ``forward`` goes through."""

_METHODS = ("forward", "__call__", "_call_impl", "__getattr__")


def install(c: Any, forward: Any, activations: tuple[str, ...]) -> None:
    """Have the extension remember; ``forward`` has taken the place of Linear's own.

    Without one, and with classes and functions that somebody has patched already,
    modules are called as ever.
    """
    from torch.nn.modules import module

    known = [
        (kind, activations.index(name), [(vars(at), f, vars(at)[f]) for at, f in calls])
        for name, (kind, calls) in _CALLS.items()
        if _is_untouched(kind) and all(is_torchs_own(*call) for call in calls)
    ]
    if (
        nn.Linear.forward is not forward
        or not _is_untouched(nn.Linear)
        or not is_torchs_own(F, "linear")
    ):
        known.clear()
    c.sequential_install(
        nn.Linear,
        [(vars(F), "linear", F.linear)],
        known,
        [
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
            module._global_forward_hooks,
            module._global_forward_pre_hooks,
        ],
    )


def _is_untouched(kind: type) -> bool:
    places = itertools.product(kind.__mro__, _METHODS)
    return all(is_torchs_own(*p) for p in places if p[0] is not object)
