"""What tests of find_batch_size() share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def only_explicit_collections() -> Iterator[None]:
    """Garbage stays until somebody collects it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
