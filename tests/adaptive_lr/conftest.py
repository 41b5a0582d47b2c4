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


@pytest.fixture(params=[False, True], ids=["stock", "fused"])
def with_fusion(request: pytest.FixtureRequest, adaptive: None) -> None:
    """Without operator_fusion, and with it."""
    if request.param:
        ptac.enable("operator_fusion")
