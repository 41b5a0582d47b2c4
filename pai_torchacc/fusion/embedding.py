"""Lookups in tables by ``nn.Embedding``, whose ``forward`` gets a stand-in.

``aten::index_select`` and the gradient of ``aten::embedding`` have overrides of their
own, for all other callers.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import traced_as
from pai_torchacc.fusion.foreign import is_torchs_own


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-in in place; the ledger takes it away."""
    c.lend(stock_embedding=torch._C._VariableFunctions.embedding)
    is_own = is_torchs_own(nn.Embedding, "forward")
    ledger.set_attribute(nn.Embedding, "forward", _forward(c) if is_own else None)


@functools.cache
def _forward(c: Any) -> Any:
    original, accelerated = vars(nn.Embedding)["forward"], c.embedding_module

    @traced_as(original)
    @functools.wraps(original)
    def forward(self: nn.Embedding, input: Tensor) -> Tensor:
        try:
            result: Tensor | None = accelerated(self, input)
            return original(self, input) if result is None else result
        except BaseException as error:
            hide(error)
            raise

    return forward
