"""Lookups in tables by ``nn.Embedding`` and ``nn.EmbeddingBag``.

Their ``forward`` gets a stand-in. The operators of aten that they come down to, and the
gradients of these, have overrides of their own, for all other callers.

``torch.jit.script`` compiles the source of the originals with the names of this module,
so that ``F`` has to be here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: F401 - see below
from torch import Tensor, nn

from pai_torchacc._frames import hide
from pai_torchacc._ledger import Ledger
from pai_torchacc.fusion.compiled import traced_as
from pai_torchacc.fusion.foreign import is_torchs_own


def install(c: Any, ledger: Ledger) -> None:
    """Put the stand-ins in place; the ledger takes them away."""
    c.lend(stock_embedding=torch._C._VariableFunctions.embedding)
    for cls, make in ((nn.Embedding, _embedding), (nn.EmbeddingBag, _bag)):
        is_own = is_torchs_own(cls, "forward")
        ledger.set_attribute(cls, "forward", make(c) if is_own else None)


@functools.cache
def _embedding(c: Any) -> Any:
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


@functools.cache
def _bag(c: Any) -> Any:
    original, accelerated = vars(nn.EmbeddingBag)["forward"], c.embedding_bag_module

    @traced_as(original)
    @functools.wraps(original)
    def forward(
        self: nn.EmbeddingBag,
        input: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        try:
            result: Tensor | None = None
            if offsets is None and per_sample_weights is None:
                result = accelerated(self, input)
            if result is None:
                result = original(self, input, offsets, per_sample_weights)
            return result
        except BaseException as error:
            hide(error)
            raise

    return forward
