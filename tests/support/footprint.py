"""What the process looks like in all places that the package changes while it is on."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad
from torch.optim import SGD, Adadelta, Adagrad, Adam, AdamW, NAdam, RMSprop, optimizer

_MODULES = ("sgd", "adam", "adamw", "adadelta", "rmsprop", "adagrad", "nadam")

MODULES = (
    torch,
    torch.nn.functional,
    torch._C._nn,
    torch.autograd,
    torch.autograd.graph,
    torch.compiler,
    torch.optim,
    optimizer,
    clip_grad,
    *(sys.modules[f"torch.optim.{name}"] for name in _MODULES),
    *(m for name, m in sys.modules.items() if name.startswith("torch.nn.modules")),
)

CLASSES = (
    torch.Tensor,
    nn.Parameter,
    optimizer.Optimizer,
    SGD,
    Adam,
    AdamW,
    Adadelta,
    RMSprop,
    Adagrad,
    NAdam,
    *{c for c in vars(nn).values() if isinstance(c, type)},
)

# Words of a PyTypeObject that setting and deleting attributes can change: tp_dealloc
# to tp_as_buffer, tp_traverse to tp_iternext, tp_base to tp_new, tp_finalize and
# tp_vectorcall.
SLOTS = (*range(6, 21), *range(23, 29), *range(32, 40), 49, 50)


def _slots(cls: type) -> tuple[int, ...]:
    words = (ctypes.c_size_t * 51).from_address(id(cls))
    return tuple(words[i] for i in SLOTS)


def overridden() -> list[str]:
    """The aten operators that we can override."""
    from pai_torchacc import _C

    return [f"aten::{aten}" for aten, _ in _C.override_names()]


def take(operators: list[str] | None = None) -> dict[str, Any]:
    """The process as it is now; holds what it saw, so that identities stay unique."""
    operators = overridden() if operators is None else operators
    found: dict[str, Any] = {
        f"dispatcher {op}": torch._C._dispatch_dump(op) for op in operators
    }
    for key in ("CPU", "AutogradCPU", "CompositeImplicitAutograd"):
        names = torch._C._dispatch_get_registrations_for_dispatch_key(key)
        found[f"dispatcher {key}"] = sorted(names)
    for module in MODULES:
        found[f"module {module.__name__}"] = _Identities(vars(module))
    for cls in CLASSES:
        name = f"class {cls.__module__}.{cls.__qualname__}"
        found[name] = _Identities(vars(cls))
        found[f"slots of {name}"] = _slots(cls)
    table = torch.jit._builtins._get_builtin_table()
    found["torch.jit builtins"] = dict(table)
    found["environment"] = dict(os.environ)
    found["warning filters"] = list(warnings.filters)
    found["meta path"] = _Identities(dict(enumerate(sys.meta_path)))
    found["log handlers"] = list(logging.getLogger("pai_torchacc").handlers)
    found["threads"] = torch.get_num_threads()
    return found


def assert_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    """Fail, naming what differs."""
    changed = []
    for place, value in before.items():
        if value != now[place]:
            changed.append(f"{place}: {_difference(value, now[place])}")
    assert not changed, "\n".join(changed)


def _difference(before: Any, now: Any) -> str:
    if isinstance(before, _Identities):
        return before.difference(now)
    if isinstance(before, str):
        pairs = zip(before.splitlines(), now.splitlines(), strict=False)
        return "\n".join(f"{a}\n{b}" for a, b in pairs if a != b)
    return f"{before!r} became {now!r}"[:500]


class _Identities:
    """A dictionary compared by the identity of its values."""

    # Made when first asked for, or counting what happened: no changes of ours.
    IGNORED = frozenset(
        {"__warningregistry__", "__annotations__", "__abstractmethods__"}
    )

    def __init__(self, mapping: Any):
        self.items = {k: v for k, v in mapping.items() if k not in self.IGNORED}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identities) and not self.difference(other)

    __hash__ = None  # type: ignore[assignment]

    def difference(self, other: _Identities) -> str:
        """What is new, gone or another object."""
        missing = object()
        keys = [*self.items, *(k for k in other.items if k not in self.items)]
        return ", ".join(
            str(k)
            for k in keys
            if self.items.get(k, missing) is not other.items.get(k, missing)
        )
