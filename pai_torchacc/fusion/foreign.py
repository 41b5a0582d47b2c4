"""Yielding to others: what they have patched before us is left as it is.

A stand-in takes the place of one function of torch and of those that it would call. If
any of these is not torch's own, the stand-in is not put in place, and the report names
what was in the way. Wrappers that torch itself puts around its functions (profiling of
optimizer steps, torch.compile's) are torch's own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

from pai_torchacc._ledger import Ledger

Place = tuple[Any, str]
"""A module or class, and an attribute of it."""

_OWN = ("torch", "pai_torchacc")
"""Packages whose functions are not foreign: torch may wrap a stand-in for good."""


def overridden(
    names: list[tuple[str, str]], installed: set[str], key: str
) -> dict[str, str]:
    """Who overrides operators at a key of the dispatcher, besides torch and us.

    Parameters
    ----------
    names : list of (str, str)
        Operators of aten, each with one of ours that a call of it may be.
    installed : set of str
        Of ours, those whose override is in the dispatcher.
    key : str
        "CPU" or "CUDA".

    Returns
    -------
    dict of str to str
        An operator of ours, and where the kernel comes from.
    """
    import torch

    of_ours = {aten for aten, op in names if op in installed}
    found = {}
    for aten, op in names:
        if aten in of_ours:
            continue
        for line in torch._C._dispatch_dump(f"aten::{aten}").splitlines():
            if line.startswith(f"{key}: ") and f"Register{key}" not in line:
                found[op] = line.removeprefix(f"{key}: ").partition(" :: ")[0]
    return found


class Yielding(Ledger):
    """A ledger that changes only what is torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self._unused: list[Any] = []

    def _do(self, entry: Any) -> None:
        """Make the change, or note who is in the way."""
        taken = [
            place
            for place in (() if entry.is_item else _replaced(entry.owner, entry.name))
            if not is_torchs_own(*place) and not self.has_set(*place)
        ]
        if not taken:
            super()._do(entry)
            return
        # Kept: tables may go by its identity, which must not become another object's.
        self._unused.append(entry.value)
        for place in taken:
            remark = f"{_name_of(*place)} was changed by others; left as is"
            if remark not in self.remarks:
                self.remarks.append(remark)

    def undo(self) -> None:
        """Take every change back, and forget who was in the way."""
        super().undo()
        self._unused.clear()


class Shared(Yielding):
    """A ledger of several switches: the last one takes the changes back."""

    def __init__(self) -> None:
        super().__init__()
        self.users: dict[str, Any] = {}
        """By switch that is on: what it has to say of the changes."""

    def release(self, switch: str) -> None:
        """Take a switch out, and the changes back where no other is left."""
        if self.users.pop(switch, None) is not None and not self.users:
            self.undo()


chains = Shared()
"""The stand-in of ``nn.Sequential.forward``, see :mod:`.sequential`."""


def is_torchs_own(owner: Any, name: str) -> bool:
    """Whether this is a function of torch, inside wrappers of torch, if any.

    So is what this torch does not have.
    """
    if name not in vars(owner):
        return True
    function = vars(owner)[name]
    if isinstance(function, staticmethod):
        function = function.__func__
    if type(function).__module__ == "pai_torchacc._C":  # see module_call.py
        function = function.__wrapped__
    if isinstance(function, BuiltinFunctionType):
        return function.__name__ == name
    while isinstance(function, FunctionType):
        module = function.__globals__.get("__name__", "")
        if module.partition(".")[0] not in _OWN:
            return False
        if not hasattr(function, "__wrapped__"):
            return True
        function = function.__wrapped__
    return False


def _replaced(owner: Any, name: str) -> Iterator[Place]:
    """What a stand-in at this place does the work of."""
    from torch import nn
    from torch.nn import functional
    from torch.optim import Optimizer

    yield owner, name
    if (owner, name) == (nn.Module, "__call__"):
        yield nn.Module, "_call_impl"
    elif (owner, name) == (nn.Sequential, "forward"):
        yield from _called_by_sequential()
    elif (owner, name) == (functional, "multi_head_attention_forward"):
        for called in ("linear", "_in_projection", "_in_projection_packed"):
            yield functional, called
    elif isinstance(owner, type) and issubclass(owner, Optimizer) and name == "step":
        for cls in owner.__mro__:
            if "_init_group" in vars(cls):
                yield cls, "_init_group"
                break
    if name in ("step", "_init_group"):
        module = "sgd" if owner.__name__ == "SGD" else "adam"
        for function in (module, f"_single_tensor_{module}", f"_multi_tensor_{module}"):
            yield sys.modules[f"torch.optim.{module}"], function


def _called_by_sequential() -> Iterator[Place]:
    import torch
    from torch import nn
    from torch.nn import functional

    for name in ("__call__", "_wrapped_call_impl", "_call_impl"):
        yield nn.Module, name
    layers = nn.Linear, nn.Conv2d, nn.BatchNorm2d
    activations = nn.ReLU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Hardtanh
    for cls in (*layers, *activations, nn.Hardswish):
        yield cls, "forward"
    for name in ("linear", "relu", "gelu", "silu", "hardtanh", "hardswish"):
        yield functional, name
    for name in ("relu", "tanh", "sigmoid"):
        yield torch, name


def _name_of(owner: Any, name: str) -> str:
    if isinstance(owner, type):
        return f"{owner.__module__}.{owner.__qualname__}.{name}"
    return f"{owner.__name__}.{name}"
