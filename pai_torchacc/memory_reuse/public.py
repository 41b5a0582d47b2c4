"""What users call."""

from __future__ import annotations

from pai_torchacc import _switch
from pai_torchacc._switch import Handle


def enable_memory_reuse() -> Handle:
    """Lower the peak memory of training, with the same bits.

    By name only. Cheap tensors that autograd saves are computed again instead of kept,
    masks and indices are packed, and repeated steps are placed by a plan. The CPU's
    memory pool is on as long as this is. Holds for this thread and those that start
    from now on.
    """
    return _switch.enable_one("memory_reuse")
