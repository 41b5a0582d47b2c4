"""The stand-in for a device is strict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from strict_device import StrictDevice


def strict_capture(
    device: StrictDevice, run: Callable[[], Any], n_aside: int = 3
) -> Any:
    pool = device.make_pool(torch.device("cpu"))
    for _ in range(n_aside):
        with device.aside(pool):
            pass
    return pool, *device.capture(pool, (), run)


def test_strict_warm_up(device: StrictDevice) -> None:
    with pytest.raises(AssertionError, match="warm up"):
        strict_capture(device, lambda: torch.ones(2), n_aside=2)


def test_strict_capture_executes_nothing(device: StrictDevice) -> None:
    x = torch.ones(3)
    pool, graph, y = strict_capture(device, lambda: x.add_(1) * 2)
    assert torch.equal(x, torch.ones(3))
    assert y.isnan().all()
    with device.replaying(pool, []):
        device.replay(graph)
    assert torch.equal(x, torch.full((3,), 2.0))
    assert torch.equal(y, torch.full((3,), 4.0))


def test_strict_waiting(device: StrictDevice) -> None:
    def run() -> None:
        with pytest.raises(RuntimeError, match="not permitted"):
            torch.ones(2).sum().item()

    with pytest.raises(RuntimeError, match="previous error"):
        strict_capture(device, run)


def test_strict_memory_that_is_gone(device: StrictDevice) -> None:
    held = [torch.ones(3)]
    pool, graph, _ = strict_capture(device, lambda: held[0] * 2)
    held.clear()
    with (
        device.replaying(pool, []),
        pytest.raises(AssertionError, match="memory that nobody holds"),
    ):
        device.replay(graph)


def test_strict_addresses_and_results_that_nobody_holds(device: StrictDevice) -> None:
    x = torch.ones(3)
    pool, graph, y = strict_capture(device, lambda: x * 2)
    alias, then = x.data, y.data
    x.data = torch.zeros(3)
    with device.replaying(pool, []):
        device.replay(graph)
    assert torch.equal(then, torch.full((3,), 2.0))
    assert torch.equal(alias, torch.ones(3))


def test_strict_order_and_generators(device: StrictDevice) -> None:
    x = torch.ones(3)
    _, graph, _ = strict_capture(device, lambda: x * 2)
    with pytest.raises(AssertionError, match="nothing orders"):
        device.replay(graph)
    generator = torch.Generator()
    with pytest.raises(RuntimeError, match="not in capture"):
        strict_capture(device, lambda: torch.rand(2, generator=generator))
