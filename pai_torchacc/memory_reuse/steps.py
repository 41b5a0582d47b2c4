"""Where a step of training ends: after an optimizer's step, for the pool's plan.

Models with several optimizers end several steps an iteration; the pool compares what
lies between two ends, so that a plan is then found for none of them or for each in
turn. A global hook of torch's tells; our own optimizer steps call it like torch's.
"""

from __future__ import annotations

from typing import Any

import torch

from pai_torchacc import _C

_registered: list[Any] = []


def note_end(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Torch's hook after an optimizer's step; what is compiled has no ends."""
    if not torch.compiler.is_compiling():
        _C.pool_end_step()


def install(c: Any) -> None:
    """Have steps that repeat planned, while the pool is on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    if not _registered:
        _registered.append(register_optimizer_step_post_hook(note_end))
    c.pool_plan_steps(True)


def remove(c: Any) -> None:
    """No plan from now on; planned blocks go back as they are freed."""
    c.pool_plan_steps(False)
    while _registered:
        _registered.pop().remove()
