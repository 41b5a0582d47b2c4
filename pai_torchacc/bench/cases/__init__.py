"""Calls of every operator at many sizes, for calibration.

One module an operator family. Calls go through torch's public functions, so that what
calibration times is what programs pay.
"""

from __future__ import annotations

from collections.abc import Iterator

from pai_torchacc.bench.cases import (
    activation,
    attention,
    by_name,
    conv,
    copies,
    encoder,
    foreach,
    indexing,
    int8,
    layer_norm,
    loss,
    norm,
    on_cuda,
    optim,
    pad,
    pool,
    randomness,
    recurrent,
    softmax,
    squeeze_excite,
    upsample,
)
from pai_torchacc.bench.cases.case import Case, Gradient, Planned
from pai_torchacc.bench.cases.conv import depthwise
from pai_torchacc.bench.cases.loss import elementwise
from pai_torchacc.bench.cases.pool import mean
from pai_torchacc.bench.cases.product import entries, linear, many

__all__ = ["Case", "Gradient", "Planned", "cases", "cases_on_cuda"]


def cases() -> Iterator[Case]:
    """Every case, cheap to list: tensors are made when a variant is built."""
    families = (
        *(
            conv,
            depthwise,
            pool,
            mean,
            norm,
            layer_norm,
            activation,
            upsample,
            pad,
            copies,
            squeeze_excite,
        ),
        *(indexing, randomness, loss, elementwise, softmax, linear, many, attention),
        *(encoder, recurrent, int8, optim, foreach, entries, by_name),
    )
    for family in families:
        yield from family.cases()


def cases_on_cuda() -> Iterator[Case]:
    """Every case for GPUs, of operators that may have rows there."""
    for family in (pool, loss, on_cuda, optim):
        yield from family.cases()
