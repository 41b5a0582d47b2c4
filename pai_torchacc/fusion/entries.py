"""Functions of torch that are entered before torch parses their arguments.

``torch.relu``, ``torch.matmul``, ``x + y`` and some others spend 1 to 3 us a call in
front of what they compute. Small tensors that ask for no gradient, where nobody looks
on, are computed at the entry. The functions stay the objects they are, and so do their
names: see ``callpath/entry`` of the C core.
"""

from __future__ import annotations

from typing import Any

import torch

FUNCTIONS = ("relu", "add", "sub", "mul", "div", "matmul", "mm")
OPERATORS = ("add", "radd", "sub", "mul", "rmul", "truediv", "matmul")

_left: list[str] = []


def install(c: Any) -> None:
    """Open all entries that this torch and this interpreter have where we expect."""
    _left.clear()
    for name in FUNCTIONS:
        c.entry_open(f"torch.{name}", getattr(torch, name), len)
        c.entry_open(f"Tensor.{name}", _method(name), str.join)
    for name in OPERATORS:
        c.entry_open(f"Tensor.__{name}__", _method(f"__{name}__"), str.join)


def _method(name: str) -> Any:
    """Torch's method, as it lies in the class that has it."""
    for cls in torch.Tensor.__mro__:
        if name in vars(cls):
            return vars(cls)[name]
    return None


def remove(c: Any) -> None:
    """Close them; what others have changed meanwhile is left to them."""
    _left[:] = c.entries_close()


def remarks() -> list[str]:
    """Who changed what we had."""
    return [f"{name} was changed by others; left as is" for name in _left]
