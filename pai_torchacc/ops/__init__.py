"""Our own operators, for programs that call them by name.

Most are in torch's dispatcher as ``torch.ops.pai_torchacc.*``, with autograd formulas
and fake kernels. Importing this package defines them; they stay for the life of the
process. While ``operator_fusion`` is off, or a call does not suit any kernel row, they
compute the same by torch's own operators.

``torch.compile(fullgraph=True)`` and ``torch.export`` keep ``linear_act``, ``conv_act``
and ``cross_entropy``. Of the others they see torch's own operators, which a compiler
fuses with what is around them. ``docs/operators.md`` says the rest.
"""

from __future__ import annotations

import pai_torchacc.ops.residual  # noqa: F401  # defines operators
from pai_torchacc.fusion.activations import ACTIVATIONS
from pai_torchacc.fusion.by_name.add_norm import add_norm
from pai_torchacc.fusion.by_name.dropout_add import dropout_add
from pai_torchacc.fusion.by_name.pointwise import (
    add_act,
    bias_act,
    bias_gelu,
    gated_act,
    swiglu,
)
from pai_torchacc.fusion.by_name.relu_max_pool2d import relu_max_pool2d
from pai_torchacc.ops.loss import REDUCTIONS, cross_entropy
from pai_torchacc.ops.products import conv_act, linear_act

__all__ = [
    "ACTIVATIONS",
    "REDUCTIONS",
    "add_act",
    "add_norm",
    "bias_act",
    "bias_gelu",
    "conv_act",
    "cross_entropy",
    "dropout_add",
    "gated_act",
    "linear_act",
    "relu_max_pool2d",
    "swiglu",
]
