"""The operators that tests of overrides call, and whether stock computed them."""

from __future__ import annotations

import emulation

OPERATORS = ("log_softmax", "max_pool2d")


def stock_was_called(op: str) -> bool:
    return any(op in name for name in emulation.stock_calls())
