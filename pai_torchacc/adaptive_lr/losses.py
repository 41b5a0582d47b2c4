"""Watching losses: the scalar roots of backward passes, and whom they reach."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr.pending import Root
from pai_torchacc.adaptive_lr.registry import tuner_of
from pai_torchacc.adaptive_lr.watching import Pass, aside
from pai_torchacc.fusion.compiled import not_compiled_alone


def install(ledger: Ledger) -> bool:
    """Look at each backward pass, and at the scale of scaled losses; whether it can."""
    ledger.set_attribute(torch.autograd, "backward", _backward())
    ledger.set_attribute(torch.amp.GradScaler, "step", _scaled_step())
    return ledger.has_set(torch.autograd, "backward")


def _backward() -> Any:
    original = torch.autograd.backward
    is_compiling = torch.compiler.is_compiling
    graph = torch._C._current_graph_task_id

    @not_compiled_alone
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if is_compiling():
            return original(tensors, *args, **kwargs)
        # Not of checkpoints, inside another one.
        running = Pass.begin() if graph() == -1 else None
        root = None
        try:
            if running is None:
                return original(tensors, *args, **kwargs)
            value = _value(tensors, args, kwargs)
            result = original(tensors, *args, **kwargs)
            root = Root(value)
        except BaseException as error:
            hide(error)
            raise
        finally:
            if running is not None:
                running.end(root)
        return result

    return backward


@aside
def _value(tensors: Any, args: Any, kwargs: Any) -> float | None:
    """The loss, where there is one real scalar, with the weight that it is given."""
    root = _alone(tensors)
    weight = _alone(args[0] if args else kwargs.get("grad_tensors"))
    if not _is_scalar(root) or not (weight is None or _is_scalar(weight)):
        return None
    if kwargs.get("grad_variables") is not None:
        return None
    has_modes = torch._C._len_torch_dispatch_stack() > 0
    with _disable_current_modes() if has_modes else nullcontext():
        return root.item() if weight is None else root.item() * weight.item()


def _alone(tensors: Any) -> Any:
    if isinstance(tensors, (tuple, list)) and len(tensors) == 1:
        return tensors[0]
    return tensors


def _is_scalar(tensor: Any) -> bool:
    return (
        isinstance(tensor, torch.Tensor)
        and tensor.numel() == 1
        and tensor.dtype.is_floating_point
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not isinstance(tensor, FakeTensor)
    )


def _scaled_step() -> Any:
    original = torch.amp.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, torch.optim.Optimizer):
            tuner = tuner_of(optimizer)
            if tuner.mode != "off":
                tuner.loss_scale = self.get_scale()
        return original(self, optimizer, *args, **kwargs)

    return step
