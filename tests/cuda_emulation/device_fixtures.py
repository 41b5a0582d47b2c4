"""What each test on the emulated devices, or on a GPU, begins with and may ask for.

A plug-in that ``emulation`` brings, and what takes its place on a GPU: tests need not
import it. It is loaded before torch may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def machine_code() -> None:
    """Our kernels have it, and nothing has been called yet."""
    import emulation

    emulation.give_machine_code()
    emulation.calls()
    emulation.stock_calls()


@pytest.fixture
def on() -> Iterator[Any]:
    """The handle of operator_fusion, which is on."""
    import internals
    from switching import FUSION

    import pai_torchacc as ptac

    with ptac.enable(FUSION) as handle:
        yield handle
    internals.reset_quarantine()
