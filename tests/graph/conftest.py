"""Tests of this folder switch on, and leave a stock process behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pai_torchacc as ptac


@pytest.fixture(autouse=True)
def off_again() -> Iterator[None]:
    yield
    ptac.disable()
