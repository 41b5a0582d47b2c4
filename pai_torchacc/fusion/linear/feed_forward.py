"""The feed-forward part of torch's Transformer layers, as a block of two layers.

``nn.TransformerEncoderLayer`` and ``nn.TransformerDecoderLayer`` call Linear,
activation, Dropout and Linear one by one. Where the Dropout does nothing these are an
``mlp`` on CUDA. The activation is most often a function, for which a module stands that
computes the same.
"""

from __future__ import annotations

import functools
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import traced_as
from pai_torchacc.fusion.foreign import is_torchs_own

_NAME = "_ff_block"
_LAYERS = (
    (nn.TransformerEncoderLayer, "dropout2"),
    (nn.TransformerDecoderLayer, "dropout3"),
)
"""Classes, and the module through which what the block gives is sent."""


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place, where there is CUDA; the ledger takes them away."""
    if c.cuda_reason():
        return
    for layer, last in _LAYERS:
        is_own = is_torchs_own(layer, _NAME)
        ledger.set_attribute(
            layer, _NAME, _stand_in(c, layer, last) if is_own else None
        )


@functools.cache
def _stand_in(c: Any, layer: type[nn.Module], last: str) -> Any:
    original, block = vars(layer)[_NAME], c.mlp_of_modules
    relu, gelu = (F.relu, nn.ReLU()), (F.gelu, nn.GELU())

    def module_of(activation: Any) -> Any:
        for function, module in (relu, gelu):
            if activation is function:
                return module
        return activation

    @traced_as(original)
    @functools.wraps(original)
    def _ff_block(self: Any, x: Tensor) -> Tensor:
        try:
            if not x.is_cuda:
                return original(self, x)
            act = module_of(self.activation)
            y = block([self.linear1, act, self.dropout, self.linear2], x)
            return original(self, x) if y is None else getattr(self, last)(y)
        except BaseException as error:
            hide(error)
            raise

    return _ff_block
