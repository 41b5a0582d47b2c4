"""Watching losses: the scalar roots of backward passes, and whom they reach."""

from __future__ import annotations

import functools
from collections import deque
from typing import Any

from pai_torchacc._ledger import Ledger
from pai_torchacc.adaptive_lr.tuner import all_tuners, known_tuner, tuner_of

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


def claim(optimizer: Any) -> list[tuple[float | None, int]]:
    """What a new optimizer is given: the losses that its gradients are the sum of.

    Each backward pass after the first has added to a gradient in place.
    """
    grads = [p.grad for g in optimizer.param_groups for p in g["params"]]
    n = max([g._version + 1 for g in grads if g is not None], default=0)
    found = [(value, 1) for value in list(_unclaimed)[-n:]] if n else []
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
            _drop(tuner)
        if tuner.gradients(optimizer) != before:
            reached.append(tuner)
    for tuner in reached:
        tuner.pending.append((value, len(reached)))
    if not reached:
        _unclaimed.append(value)


def _drop(tuner: Any) -> None:
    """Its gradients were thrown away before it stepped.

    Where another optimizer steps by the same loss, the two work against each other, as
    generator and discriminator do: what such losses say is not progress.
    """
    if any(n > 1 for _, n in tuner.pending):
        for _, other in all_tuners():
            other.go_without_losses("losses of optimizers that work against each other")
    tuner.pending.clear()


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
        tuner = known_tuner(optimizer)
        if tuner is None and hasattr(optimizer, "param_groups"):
            tuner = tuner_of(optimizer)
            tuner.pending = claim(optimizer)
        if tuner is not None and tuner.mode != "off":
            tuner.loss_scale = self.get_scale()
        return original(self, optimizer, *args, **kwargs)

    return step
