"""The stand-in of ``Tensor.detach_`` while DDP has views of buckets from us."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from pai_torchacc import _frames


def stand_in(
    stock: Callable[[Any], Any], is_our_gradient: Callable[[Any], bool]
) -> Callable[[Any], Any]:
    """``detach_`` that leaves a gradient as it is where stock fails at a view.

    Only where there is no history to detach, and for gradients that stock's DDP would
    not have made views.
    """

    @functools.wraps(stock)
    def detach_(self: Any) -> Any:
        try:
            return stock(self)
        except RuntimeError as error:
            if self.grad_fn is None and is_our_gradient(self):
                return self.requires_grad_(False)
            _frames.hide(error)
            raise

    return detach_
