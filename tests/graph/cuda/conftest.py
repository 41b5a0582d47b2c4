"""Tests of this folder run on CPU tensors that a stand-in takes for a device's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from strict_device import StrictDevice, optimizers_are_capturable

import pai_torchacc as ptac
from pai_torchacc.graph.cuda import capturing


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictDevice]:
    strict = StrictDevice()
    monkeypatch.setattr(capturing, "layer", strict)
    optimizers_are_capturable(strict, monkeypatch)
    yield strict
    ptac.disable()


@pytest.fixture(autouse=True)
def every_test_has_it(request: pytest.FixtureRequest) -> None:
    if "fake" not in request.fixturenames:
        request.getfixturevalue("device")
