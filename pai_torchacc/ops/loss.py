"""Cross-entropy as one operator."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from pai_torchacc.fusion.loss import operator as _loss
from pai_torchacc.ops.dispatcher import define, first_result

REDUCTIONS = ("none", "mean", "sum")


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Compute what ``torch.nn.functional.cross_entropy`` does, as one operator.

    Parameters
    ----------
    input : Tensor
        Logits, [classes], [n, classes] or [n, classes, ...]
    target : Tensor
        Class indices (int64), input's sizes without the classes; or probabilities, of
        input's sizes and dtype.
    weight : Tensor, optional
        [classes]
    ignore_index, reduction, label_smoothing
        As in torch.

    Raises
    ------
    ValueError
        There is no such reduction.
    RuntimeError, IndexError
        As torch's own.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction={reduction!r}; there are: {', '.join(REDUCTIONS)}")
    if target.requires_grad or (weight is not None and weight.requires_grad):
        options = ignore_index, None, reduction, label_smoothing
        return F.cross_entropy(input, target, weight, None, *options)
    code = REDUCTIONS.index(reduction)
    args = input, target, weight, code, ignore_index, float(label_smoothing)
    return first_result("cross_entropy", _loss.stock, *args)


define(
    "cross_entropy(Tensor input, Tensor target, Tensor? weight=None, int reduction=1,"
    " int ignore_index=-100, float label_smoothing=0.0, bool in_float32=False)"
    " -> (Tensor, Tensor)",
    _loss.stock,
    {
        "CPU": _loss.kernel,
        "CUDA": _loss.kernel,
        "AutocastCPU": None,
        "AutocastCUDA": _loss.under_autocast,
    },
    _loss.backward,
    _loss.setup_context,
    fake=_loss.fake,
)
