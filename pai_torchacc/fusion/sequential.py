"""Modules of an ``nn.Sequential`` that are run as one, where all are torch's own.

A Linear and the activation behind it are one ``linear_act``. A Conv2d with what follows
of BatchNorm2d in eval mode, ReLU and a 2x2 MaxPool2d is one ``conv2d`` where no
gradient is asked for: scale, shift and the rest are applied while the outputs are in
the cache. The scale is computed anew from the layer's tensors at each call, so that
nothing can go stale.

That passes over everything that torch would have called in between. So the extension
remembers what it is, and calls the modules as ever as soon as any of it is another.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import not_compiled_alone
from pai_torchacc.fusion.foreign import is_torchs_own


class _Known(NamedTuple):
    """A class, what its ``forward`` goes through, and where it keeps tensors."""

    kind: type
    functions: tuple[tuple[Any, str], ...]
    methods: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ()


_WEIGHTS = ("weight", "bias")
_KNOWN = (  # in the order of the extension's kinds
    _Known(nn.Linear, ((F, "linear"),), (), _WEIGHTS),
    _Known(nn.Conv2d, ((F, "conv2d"),), ("_conv_forward",), _WEIGHTS),
    _Known(
        nn.BatchNorm2d,
        ((F, "batch_norm"), (torch, "batch_norm")),
        ("_check_input_dim",),
        (*_WEIGHTS, "running_mean", "running_var"),
    ),
    _Known(nn.MaxPool2d, ((F, "max_pool2d"), (torch, "max_pool2d"))),
    _Known(nn.ReLU, ((F, "relu"), (torch, "relu"))),
    _Known(nn.GELU, ((F, "gelu"),)),
    _Known(nn.SiLU, ((F, "silu"), (torch._C._nn, "silu"))),
    _Known(nn.Tanh, ((torch, "tanh"),)),
    _Known(nn.Sigmoid, ((torch, "sigmoid"),)),
)
_METHODS = ("forward", "__call__", "_call_impl", "__getattr__")


def install(c: Any, ledger: Ledger, linear_forward: Any) -> None:
    """Put the stand-in of ``nn.Sequential.forward`` in place; the ledger takes it away.

    ``linear_forward`` has taken the place of Linear's own. Without one, and with
    classes and functions that somebody has patched already, modules are called as ever.
    """
    _remember(c, linear_forward)
    is_own = is_torchs_own(nn.Sequential, "forward")
    ledger.set_attribute(
        nn.Sequential, "forward", _sequential_forward(c) if is_own else None
    )


def _remember(c: Any, linear_forward: Any) -> None:
    from torch.nn.modules import module

    classes = [
        (
            i,
            known.kind,
            [*_METHODS, *known.methods],
            [(vars(at), name, vars(at)[name]) for at, name in known.functions],
            list(known.tensors),
        )
        for i, known in enumerate(_KNOWN)
        if _is_untouched(known)
        and (known.kind is not nn.Linear or nn.Linear.forward is linear_forward)
    ]
    c.module_guards_install(
        classes,
        [
            module._global_backward_pre_hooks,
            module._global_backward_hooks,
            module._global_forward_hooks,
            module._global_forward_pre_hooks,
        ],
    )


def _is_untouched(known: _Known) -> bool:
    methods = [
        place
        for place in itertools.product(known.kind.__mro__, (*_METHODS, *known.methods))
        if place[0] is not object
    ]
    return all(is_torchs_own(*place) for place in (*methods, *known.functions))


@functools.cache
def _sequential_forward(c: Any) -> Any:
    original, accelerated = vars(nn.Sequential)["forward"], c.sequential
    iterate = nn.Sequential.__iter__
    is_compiling = torch.compiler.is_compiling

    @not_compiled_alone
    @functools.wraps(original)
    def forward(self: nn.Sequential, input: Any) -> Any:
        if is_compiling() or type(self).__iter__ is not iterate:
            return original(self, input)
        return accelerated(self, input)

    return forward
