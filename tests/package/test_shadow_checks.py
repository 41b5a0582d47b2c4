"""``verify=N``: stock repeats one call in N, and an offender is out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import internals
import layers
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.fusion import linear
from pai_torchacc.fusion.optim import steps

STEPS = 6


@pytest.fixture(autouse=True)
def reset_quarantine() -> Iterator[None]:
    yield
    internals.reset_quarantine()


def train(optimizer_class: type, steps: int = STEPS) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 13 * 13, 32),
        nn.GELU(),
        nn.Linear(32, 10),
    )
    optimizer = optimizer_class(model.parameters(), lr=0.01)
    x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    with torch.no_grad():
        return [*model.parameters(), model(x)]


def troubles() -> list[str | None]:
    return [_C.counters(name)[5] for name, _, _ in _C.operators()]


def ops() -> dict[str, dict[str, object]]:
    return json.loads(ptac.report("json"))["ops"]


def test_a_thread_is_mute_while_somebody_holds_it() -> None:
    held = [_C.thread_mute(), _C.thread_mute()]
    assert _C.thread_is_disabled()
    held.pop()
    assert _C.thread_is_disabled()
    held.clear()
    assert not _C.thread_is_disabled()


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("every", [1, 3])
def test_checks_change_nothing(optimizer: type, every: int) -> None:
    ptac.report(reset=True)
    with switching.accelerated():
        expected = train(optimizer)
        unchecked = ops()
    ptac.report(reset=True)
    with switching.accelerated(verify=every):
        found = train(optimizer)
        checked = ops()
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)
    step = "sgd_step" if optimizer is torch.optim.SGD else "adamw_step"
    for op in ("max_pool2d", "max_pool2d_backward", "linear_act", "cross_entropy",
               "linear_act_backward", "cross_entropy_backward", step):  # fmt: skip
        # While there are checks a convolution and its pool are two calls without grad.
        n_apart = 1 if op == "max_pool2d" else 0
        assert checked[op]["accelerated"] == unchecked[op]["accelerated"] + n_apart
        assert unchecked[op]["accelerated"] > 0
        assert checked[op]["forwarded"] == unchecked[op]["forwarded"]
        assert unchecked[op]["ms_saved"] is None
        assert unchecked[op]["timed"] == 0
        assert checked[op]["timed"] > 0
        assert (checked[op]["ms_saved"] is None) == (checked[op]["timed"] < 5)


def test_ties_of_a_pool_are_no_fault() -> None:
    """Checks compare a pool, and its gradient, on the same numbers."""
    layers = nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2)
    flat = torch.full((4, 8, 32, 32), 0.3, requires_grad=True)
    ptac.report(reset=True)
    with switching.accelerated(verify=1):
        before = troubles()
        nn.Sequential(*layers)(flat).sum().backward()
        found = ops()
    assert troubles() == before  # those of other tests are told until the end
    assert found["conv2d"]["accelerated"] == 1
    assert found["max_pool2d_backward"]["accelerated"] == 1


def test_a_lean_row_with_other_numbers_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    stock = linear.stock_forward

    def shifted(*args: object) -> object:
        return stock(*args) + 1

    x, w = torch.randn(64, 32), torch.randn(48, 32)
    monkeypatch.setattr(linear, "stock_forward", shifted)
    with switching.accelerated("linear_act", verify=1):
        result = layers.linear(x, w)
        entry = ops()["linear_act"]
        again = layers.linear(x, w)
    torch.testing.assert_close(result, torch._C._nn.linear(x, w) + 1)
    torch.testing.assert_close(again, torch._C._nn.linear(x, w))
    assert "shadow check" in str(entry["trouble"])
    assert switching.hits("linear_act").forwarded == {}


def test_an_optimizer_with_other_numbers_is_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Wrong(steps.Rehearsal):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            for copy in self._copies:
                copy.detach().fill_(7)

    p = nn.Parameter(torch.randn(40))
    p.grad = torch.randn(40)
    sgd = torch.optim.SGD([p], lr=0.1)
    with switching.accelerated("sgd_step", verify=1):
        counted = switching.hits("sgd_step")
        with monkeypatch.context() as patch:
            patch.setattr(steps, "Rehearsal", Wrong)
            sgd.step()
        assert bool((p == 7).all())  # stock's numbers are handed out
        sgd.step()
        assert counted.forwarded == {"quarantined": 1}
    assert not bool((p == 7).any())


@pytest.mark.parametrize("level", ["exact", "close"])
def test_no_grad_calls_are_checked_as_well(level: str) -> None:
    ptac.report(reset=True)
    x, target = torch.randn(64, 10), torch.randint(0, 10, (64,))
    with switching.accelerated(verify=1, numerics=level), torch.no_grad():
        for _ in range(2):  # the first in a process is no timing
            F.cross_entropy(x, target)
            F.max_pool2d(torch.randn(2, 3, 8, 8), 2)
        entries = ops()
    assert entries["max_pool2d"]["timed"] > 0
    assert (entries["cross_entropy"]["timed"] > 0) == (level == "close")


def test_what_is_saved_is_said_from_five_timings_on() -> None:
    """The first check, which is cold, is none of them."""
    program = """
import json, torch, switching, pai_torchacc as ptac
with switching.accelerated("max_pool2d", verify=1):
    for _ in range(7):
        torch.max_pool2d(torch.ones(1, 1, 4, 4), 2)
        entry = json.loads(ptac.report("json"))["ops"]["max_pool2d"]
        [line] = [x for x in ptac.report().splitlines() if x.startswith("max_pool2d ")]
        print(entry["timed"], entry["ms_saved"] is None, line.split(maxsplit=4)[4:])
"""
    said = switching.python(program).splitlines()
    assert said[:2] == ["0 True []", "1 True ['(1 timed)']"]
    assert said[4] == "4 True ['(4 timed)']"
    assert said[5].startswith("5 False ['")
    assert said[5].endswith(" (5 timed)']")
    assert len(said) == 7
