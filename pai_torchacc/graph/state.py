"""What modules hold, so that a change within a call shows."""

from __future__ import annotations

from typing import Any

from torch import nn

from pai_torchacc.graph.memories import HOMES
from pai_torchacc.graph.signature import is_dense


class _Address(int):
    """Where a tensor's data lies."""


class State:
    """What modules hold, so that a change shows; it is kept alive meanwhile."""

    def __init__(self, modules: list[nn.Module], is_step: bool):
        self._modules = modules
        self._is_step = is_step
        self._before = [_held_by(module) for module in modules]

    def change(self) -> str | None:
        """What is another object, or holds another one."""
        for module, before in zip(self._modules, self._before, strict=True):
            after = _held_by(module)
            for what in before.keys() | after.keys():
                one, other = before.get(what), after.get(what)
                if isinstance(one, _Address) and one == other:
                    continue
                if self._is_step and what[0] in ("the gradient", "the data"):
                    continue
                if one is not other:
                    return " of ".join(str(part) for part in what)
        return None


def _held_by(module: nn.Module) -> dict[tuple[Any, ...], Any]:
    """By what it is called: attributes, what they hold, gradients and data."""
    found: dict[tuple[Any, ...], Any] = {}
    for home in HOMES:
        for name, tensor in module.__dict__[home].items():
            if tensor is not None and is_dense(tensor):
                found["the gradient", name] = tensor.grad
                found["the data", name] = _Address(tensor.data_ptr())
    for name, value in module.__dict__.items():
        found[f"the attribute {name}",] = value
        items: Any = ()
        if isinstance(value, dict):
            items = value.items()
        elif isinstance(value, list):
            items = enumerate(value)
        found.update({("item", _short(key), name): item for key, item in items})
    return found


def _short(key: Any) -> Any:
    """A key of the program's, without calling anything of it."""
    return key if type(key) in (str, int) else id(key)
