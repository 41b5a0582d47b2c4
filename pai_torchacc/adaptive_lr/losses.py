"""Watching losses: the scalar roots of backward passes, and whom they reach."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr.tuner import Root, all_tuners, known_tuner, tuner_of

_unclaimed: deque[float | None] = deque(maxlen=1024)
"""Losses that have reached no optimizer we know: the latest are a new one's first."""


def install(ledger: Ledger) -> None:
    """Look at each backward pass, and at the scale of scaled losses."""
    import torch

    ledger.set_attribute(torch.autograd, "backward", _backward(torch))
    ledger.set_attribute(torch.amp.GradScaler, "step", _scaled_step(torch))


def forget() -> None:
    """What nobody has claimed."""
    _unclaimed.clear()


def tuner_with_losses(optimizer: Any) -> Any:
    """The one of an optimizer; a new one is given the losses of its first gradients."""
    found = known_tuner(optimizer)
    if found is None:
        found = tuner_of(optimizer)
        found.pending = _claimed(optimizer)
    return found


def _claimed(optimizer: Any) -> list[Root]:
    """Each backward pass after the first has added to a gradient in place."""
    grads = [p.grad for g in optimizer.param_groups for p in g["params"]]
    n = max([g._version + 1 for g in grads if g is not None], default=0)
    found = [Root(value, 1) for value in list(_unclaimed)[-n:]] if n else []
    _unclaimed.clear()
    return found


def _backward(torch: Any) -> Any:
    original = torch.autograd.backward
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if is_compiling():
            return original(tensors, *args, **kwargs)
        watched = [(o, t, t.gradients(o)) for o, t in all_tuners()]
        value = _value(torch, tensors, args, kwargs)
        result = original(tensors, *args, **kwargs)
        _note(value, watched)
        return result

    return backward


def _note(value: float | None, watched: list[tuple[Any, Any, list[Any]]]) -> None:
    reached = []
    for optimizer, tuner, before in watched:
        if all(gradient is None for gradient in before):
            tuner.drop()
        if tuner.gradients(optimizer) != before:
            reached.append((optimizer, tuner))
    root = Root(value, len(reached))
    for optimizer, tuner in reached:
        tuner.note(root, optimizer)
    if not reached:
        _unclaimed.append(value)


def _value(torch: Any, tensors: Any, args: Any, kwargs: Any) -> float | None:
    """The loss, where there is one real scalar and nothing is asked beyond it."""
    root = tensors
    if isinstance(tensors, (tuple, list)) and len(tensors) == 1:
        root = tensors[0]
    weight = args[0] if args else kwargs.get("grad_tensors")
    if isinstance(weight, (tuple, list)) and len(weight) == 1:
        weight = weight[0]
    if (
        type(root) is not torch.Tensor
        or root.numel() != 1
        or not root.dtype.is_floating_point
        or root.device.type != "cpu"
        or weight is not None
    ):
        return None
    return float(root.detach())


def _scaled_step(torch: Any) -> Any:
    original = torch.amp.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(optimizer, torch.optim.Optimizer):
            tuner = tuner_with_losses(optimizer)
            if tuner.mode != "off":
                tuner.loss_scale = self.get_scale()
        return original(self, optimizer, *args, **kwargs)

    return step
