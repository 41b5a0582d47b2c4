"""What operators that programs call by name, and that are served on CUDA, share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pai_torchacc import _host


def wants_gradient(*given: Any) -> bool:
    """Whether a call of these tensors, and what else there is, will have a node."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in given
    )


def can_be_ours(op: str, *given: Any) -> bool:
    """Whether a call may be served: outside of compilers, of tensors on CUDA.

    A node of ours saves other tensors than torch's do. So there is none where hooks
    look at what is saved, such as those of ``torch.utils.checkpoint``, and none of
    tensors made in inference mode, which cannot be saved.
    """
    x = given[0]
    if torch.compiler.is_compiling() or type(x) is not Tensor or not x.is_cuda:
        return False
    try:
        _host.learnt()
    except _host.Unavailable:
        return False
    if not wants_gradient(*given):
        return True
    c = _host.load()
    why = None
    if c.saving_is_hooked():
        why = "hooks"
    elif any(isinstance(t, Tensor) and t.is_inference() for t in given):
        why = "gradient not supported"
    if why is not None:
        c.refuse(op, why)
    return why is None
