"""Functions of torch that are entered before torch parses their arguments.

``torch.relu``, ``torch.matmul``, ``x + y`` and some others spend 1 to 3 us a call in
front of what they compute. Small tensors that ask for no gradient, where nobody looks
on, are computed at the entry. The functions stay the objects they are, and so do their
names: see ``callpath/entry`` of the C core.
"""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc.fusion.foreign import overridden

FUNCTIONS = {
    "relu": ("relu", ""),
    "relu_": ("relu_", ""),
    **{name: (name, "Tensor") for name in ("add", "sub", "mul", "div")},
    "matmul": ("mm", ""),
    "mm": ("mm", ""),
}
"""By name: the operator of aten that they lead to, and its overload."""

OPERATORS = {
    **{name: name for name in ("add", "sub", "mul", "matmul")},
    **{"radd": "add", "rmul": "mul", "truediv": "div"},
}
"""By name: the function that does the same."""

_left: list[str] = []
_foreign: dict[str, str] = {}


def install(c: Any) -> None:
    """Open all entries that this torch and this interpreter have where we expect.

    Anew where they are open: which kernels torch has for them may have changed.
    """
    c.entries_close()
    _left.clear()
    if not c.dispatch_is_proved():  # by any override, which is taken out again
        c.override_install(["mm"])
    _foreign.clear()
    operators = {name: ".".join(filter(None, k)) for name, k in FUNCTIONS.items()}
    pairs = [(aten, aten) for aten in operators.values() if aten != "mm"]
    _foreign.update(overridden(pairs, set(), "CPU"))
    for name, kernel in FUNCTIONS.items():
        if operators[name] in _foreign:
            continue
        c.entry_open(f"torch.{name}", _function(name), len, *kernel)
        if not name.endswith("_"):
            c.entry_open(f"Tensor.{name}", _method(name), str.join, *kernel)
    for name, same in OPERATORS.items():
        if operators[same] in _foreign:
            continue
        method = _method(f"__{name}__")
        c.entry_open(f"Tensor.__{name}__", method, str.join, *FUNCTIONS[same])


def _function(name: str) -> Any:
    """Torch's function, whatever the name in ``torch`` means by now."""
    return getattr(torch._C._VariableFunctions, name, None)


def _method(name: str) -> Any:
    """Torch's method, as it lies in the class that C has made."""
    return vars(torch._C.TensorBase).get(name)


def remove(c: Any) -> None:
    """Close them; what others have changed meanwhile is left to them."""
    _left[:] = c.entries_close()


def remarks() -> list[str]:
    """Who changed what we had."""
    left = [f"{name} was changed by others; left as is" for name in _left]
    return left + [f"{op}: overridden by {who}" for op, who in _foreign.items()]
