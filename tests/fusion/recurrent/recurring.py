"""nn.LSTM and nn.GRU, and what a training by them gives."""

from __future__ import annotations

from typing import Any

import pytest
import switching
import torch
from torch import Tensor, nn

NAMES = ("lstm", "gru")
OPS = tuple(f"{name}{end}" for name in NAMES for end in ("", "_backward"))
CLASSES: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU}

each = pytest.mark.parametrize("name", NAMES)
VECTORS = [row for row in switching.runnable_rows("lstm") if row != "scalar"]
"""Rows; where there are no vectors, the row "scalar" serves."""

rows = pytest.mark.parametrize("row", VECTORS or ["scalar"])

Result = dict[str, Tensor]


def outputs(found: Any) -> Result:
    """Y and the states by name."""
    y, states = found
    states = states if isinstance(states, tuple) else (states,)
    return {"y": y, **dict(zip("hc", states, strict=False))}


def trained(module: nn.RNNBase, x: Tensor, hx: Any = None) -> Result:
    """Outputs, and gradients of everything by all of them."""
    found = outputs(module(x) if hx is None else module(x, hx))
    loss = sum((t * t.cos()).sum() for t in found.values())
    states = hx if isinstance(hx, tuple) else (hx,)
    wanted = {"x": x} | {f"hx {i}": t for i, t in enumerate(states) if t is not None}
    wanted |= dict(module.named_parameters())
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return found | dict(zip(wanted, grads, strict=True))
