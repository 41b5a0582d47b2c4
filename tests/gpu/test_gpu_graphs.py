"""``optimize()`` on a real device: CUDA graphs beside calls that nobody captures."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

pytestmark = pytest.mark.gpu

AHEAD = 4
"""Calls of a kind before the one that is captured."""


@pytest.fixture(autouse=True)
def float32_and_off_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch.manual_seed(0)
    yield
    ptac.disable()


def counts(target: Any) -> dict[str, Any]:
    from pai_torchacc.graph import planned

    entry = getattr(target, "_compiled_call_impl", None)
    found = getattr(target, "__ptac_planned__", None)
    found = found or next(one for one in planned.everything if one.entry is entry)
    return found.counts()


def replays(target: Any) -> int:
    """How many calls went by graphs; the reasons, where none did."""
    found = counts(target)
    assert found["graphs"] > 0, found["reasons"]
    return found["planned_calls"]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8)).cuda()


def convnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 8 * 8, 8),
    ).cuda()  # fmt: skip


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
    return nn.Sequential(layer, nn.Flatten(), nn.Linear(32 * 6, 8)).cuda()


SIZES: dict[Callable[[], nn.Module], tuple[int, ...]] = {
    mlp: (16, 32),
    convnet: (4, 3, 16, 16),
    transformer: (4, 6, 32),
}


@pytest.mark.parametrize("make", SIZES)
def test_inference(make: Any) -> None:
    model = make().eval()
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    with torch.no_grad():
        for _ in range(AHEAD + 6):
            x = torch.randn(SIZES[make], device="cuda")
            torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    assert replays(model) == 6


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, capturable=True)


def fused(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, capturable=True, fused=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("make_optimizer", [sgd, adam, fused])
@pytest.mark.parametrize("make", SIZES)
def test_steps(make: Any, make_optimizer: Any) -> None:
    """Losses, parameters, statistics, gradients and random numbers, step by step."""
    ours = make()
    theirs = copy.deepcopy(ours)
    step = step_of(ours, make_optimizer(ours.parameters()))
    step = ptac.optimize(step, on_refusal="raise")
    stock = step_of(theirs, make_optimizer(theirs.parameters()))
    for i in range(AHEAD + 8):
        x = torch.randn(SIZES[make], device="cuda")
        y = torch.randint(8, SIZES[make][:1], device="cuda")
        before = torch.cuda.get_rng_state()
        loss = step(x, y)
        after = torch.cuda.get_rng_state()
        torch.cuda.set_rng_state(before)
        expected = stock(x, y)
        assert torch.equal(after, torch.cuda.get_rng_state()), i
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-3, atol=1e-4)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-2, atol=1e-3)
    assert replays(step) == 7


def test_a_capture_that_fails_leaves_random_numbers_usable() -> None:
    """No watcher has seen that it waits: the call is made, and the process mends."""

    def function(x: Tensor) -> Tensor:
        torch.cuda.synchronize()
        return F.dropout(x, 0.5)

    planned = ptac.optimize(function, on_refusal="ignore")
    x = torch.ones(1000, device="cuda")
    for _ in range(AHEAD + 2):
        assert 300 < int((planned(x) != 0).sum()) < 700
    assert counts(planned)["graphs"] == 0
    assert "it cannot be captured" in " ".join(counts(planned)["reasons"])
    other = ptac.optimize(lambda x: F.dropout(x, 0.5), on_refusal="raise")
    for _ in range(AHEAD + 3):
        assert 300 < int((other(x) != 0).sum()) < 700
    assert replays(other) == 3


def test_replays_on_several_streams() -> None:
    model = mlp().eval()
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    with torch.no_grad():
        for i in range(AHEAD + 30):
            stream = streams[i % 3]
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x = torch.randn(16, 32, device="cuda")
                torch.cuda._sleep(100_000)
                results.append((model(x), twin(x)))
        torch.cuda.synchronize()
    for ours, theirs in results:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert replays(model) == 30


def test_our_kernels_are_captured() -> None:
    ptac.enable("operator_fusion")
    model = convnet().eval()
    twin = copy.deepcopy(model)
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(SIZES[convnet], device="cuda")
    with torch.no_grad():
        for _ in range(AHEAD + 40):  # kernels may come from a compiler meanwhile
            torch.testing.assert_close(model(x), twin(x), rtol=1e-4, atol=1e-5)
    assert replays(model) > 0


def test_memory_is_given_back() -> None:
    model = mlp().eval()
    ptac.optimize(model, on_refusal="raise")
    x = torch.randn(4096, 32, device="cuda")
    with torch.no_grad():
        for _ in range(AHEAD + 2):
            model(x)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    ptac.unoptimize(model)
    assert torch.cuda.memory_allocated() < before
