"""Adaptive rates where losses and gradients do not go together as they seem to."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from adapting import (
    backward,
    linear,
    losses_of,
    multipliers_of,
    network,
    report,
    train,
)
from torch import nn, optim

import pai_torchacc as ptac
from pai_torchacc.adaptive_lr import update_rules

pytestmark = pytest.mark.usefixtures("adaptive")


def test_gradients_that_are_averaged_after_backward() -> None:
    """Eight losses add up, and an eighth of their gradients is stepped by."""
    rates = []
    for is_seen in (True, False):  # by versions of the gradients
        net, optimizer = linear()
        for _ in range(30):
            optimizer.zero_grad()
            for _ in range(8):
                backward(net)
            for p in net.parameters():
                (p.grad if is_seen else p.grad.data).div_(8)
            optimizer.step()
        rates.append(multipliers_of(optimizer))
    assert rates[0] == rates[1] and rates[0][-1] > 2


@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_nobody_steps_by_are_freed(clips: bool) -> None:
    """Though other optimizers go on, and this thread looks at them no more."""
    other, others = linear()
    net, optimizer = linear()
    for _ in range(3):
        optimizer.zero_grad()
        backward(net)
        if clips:
            nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
        optimizer.step()
    backward(net)
    gone = [weakref.ref(p) for p in net.parameters()]
    del net, optimizer
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    train(other, others, 3)
    assert report(others).mode == "loss"


def test_hooks_on_gradients_leave_no_losses_to_go_by() -> None:
    net, optimizer = linear()
    for p in net.parameters():
        p.register_hook(lambda g: g / 8)
    train(net, optimizer, 5)
    assert report(optimizer).mode == "loss_free" and "hooks" in report(optimizer).reason


def test_losses_of_zero_have_no_gradients_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first steps measure them apart, as there is none before to go by."""
    measured = []
    descent = update_rules.descent

    def counted(*args: Any) -> float | None:
        measured.append(args)
        return descent(*args)

    monkeypatch.setattr(update_rules, "descent", counted)
    ptac.enable()
    for times, n_measured in ((1.0, 6), (0.0, 0)):
        net = nn.Linear(8, 512)  # large enough for steps of our own
        optimizer = optim.SGD(net.parameters(), lr=1e-3)
        measured.clear()
        train(net, optimizer, 6, lambda a, b, t=times: t * (a.sum() - b.sum()) ** 2)
        assert len(measured) == n_measured and report(optimizer).mode == "loss"


def test_adagrad_begins_with_the_sum_that_it_was_given() -> None:
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.tensor([1.0, -2.0, 3.0])
    optimizer = optim.Adagrad([p], lr=0.1, initial_accumulator_value=100.0)
    known = update_rules.direction_of(optimizer)
    found = update_rules.descent(known, optimizer, optimizer.param_groups[0], 1.0)
    optimizer.step()
    # Of the parameters, which began at zero; float32 rounds each a few times.
    assert found == pytest.approx(-float(p.grad @ p.detach()) / 0.1, rel=1e-6)


def test_dampening_without_momentum_is_none() -> None:
    ends = []
    for dampening in (0.0, 0.9):
        net, optimizer = network(lr=1e-3, dampening=dampening)
        train(net, optimizer, 30)
        ends.append(report(optimizer).multiplier)
    assert ends[0] == ends[1] > 1


def test_a_rate_of_zero_leaves_losses_as_they_are() -> None:
    net, optimizer = linear(lr=0.0)
    for _ in range(30):
        optimizer.zero_grad()
        backward(net)
        optimizer.step()
    assert report(optimizer).mode == "loss"


def test_rates_are_tensors_of_one_element() -> None:
    net, _ = linear()
    ends = []
    for lr in (torch.tensor(1e-3), torch.tensor([1e-3])):
        optimizer = optim.Adam(net.parameters(), lr=lr)
        train(net, optimizer, 20)
        ends.append(report(optimizer).multiplier)
    assert min(ends) > 1


def test_a_state_of_the_first_step_knows_who_shares_its_loss() -> None:
    def both(seed: int) -> tuple[nn.Module, list[Any]]:
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
        return net, [optim.SGD(net[i].parameters(), lr=1e-2) for i in (0, 2)]

    def go(net: nn.Module, optimizers: list[Any], n: int) -> None:
        for _ in range(n):
            net.zero_grad()
            backward(net)
            for optimizer in optimizers:
                optimizer.step()

    net, optimizers = both(0)
    go(net, optimizers, 1)
    states = [copy.deepcopy(o.state_dict()) for o in (net, *optimizers)]
    go(net, optimizers, 5)
    other, others = both(1)
    for one, state in zip((other, *others), states, strict=True):
        one.load_state_dict(state)
    go(other, others, 5)
    assert all(map(torch.equal, net.parameters(), other.parameters()))


def test_backward_inside_of_a_compiled_function() -> None:
    net, optimizer = linear()
    compiled = torch.compile(backward, backend="eager")
    for _ in range(10):
        optimizer.zero_grad()
        compiled(net)
        optimizer.step()
    assert report(optimizer).mode == "loss" and None not in losses_of(optimizer)
    torch.compiler.reset()
