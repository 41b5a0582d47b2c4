"""The switch adaptive_lr around a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pai_torchacc as ptac


@pytest.fixture
def adaptive() -> Iterator[None]:
    """On before the test, off after it."""
    with ptac.enable_adaptive_lr():
        yield
    ptac.disable()
