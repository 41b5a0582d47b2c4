"""Training steps by graphs: gradients, optimizers, what is compared."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stepping import batches, mlp, plain
from strict_device import StrictDevice
from torch import Tensor, nn
from twins import AHEAD, Net, Twins, adam, graphs, reasons, replays, sgd

import pai_torchacc as ptac


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("model", [mlp, Net])
def test_steps_train_as_ever(model: Any, make: Any, device: StrictDevice) -> None:
    twins = Twins(model(), make=make)
    for batch in batches(12, 4, 12):
        twins.call(*batch)
    # The first step has no gradients yet, and is of another kind.
    assert device.n_replays == replays(twins.step) == 12 - 1 - AHEAD
    assert device.n_captures == 1


def test_gradients_set_to_zero_in_place() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4
    weight = twins.models[0][0].weight
    weight.grad = weight.grad.clone()  # which a graph has another address of
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert graphs(twins.step) == 1
    assert replays(twins.step) > 4


def accumulate(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def test_gradients_are_accumulated_and_stepped_outside() -> None:
    """Gradients lie in the graph's memory; the optimizer is nobody's business."""
    twins = Twins(mlp(), accumulate)

    def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    for i, batch in enumerate(batches(24, 4, 12)):
        twins.call(*batch)
        if i % 2:
            twins.both(update)
            twins.check()
    assert graphs(twins.step) == 2  # without gradients before, and with
    assert replays(twins.step) == 24 - 2 * AHEAD


def test_a_gradient_that_is_held_is_not_written_over() -> None:
    twins = Twins(mlp())
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    before = replays(twins.step)
    held = twins.models[0][0].weight.grad
    then = held.clone()
    for batch in batches(2, 4, 12):
        twins.call(*batch)
    assert torch.equal(held, then)
    assert replays(twins.step) == before
    assert "a gradient of an earlier call is still held" in reasons(twins.step)
    del held
    twins.call(*batches(1, 4, 12)[0])
    assert replays(twins.step) == before + 1


def test_a_view_of_a_gradient_is_not_written_over() -> None:
    twins = Twins(mlp())
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    view = twins.models[0][0].weight.grad.view(-1)
    then = view.clone()
    twins.call(*batches(1, 4, 12)[0])
    assert torch.equal(view, then)


def test_a_gradient_that_is_taken_away_and_kept() -> None:
    twins = Twins(mlp(), accumulate)
    for batch in batches(AHEAD + 2, 4, 12):
        twins.call(*batch)
        kept = [p.grad for p in twins.models[0].parameters()]
        twins.both(lambda model, optimizer: optimizer.zero_grad())
    then = [grad.clone() for grad in kept]
    for batch in batches(3, 4, 12):
        twins.call(*batch)
        twins.both(lambda model, optimizer: optimizer.zero_grad())
    assert all(map(torch.equal, kept, then))


def test_versions_are_counted() -> None:
    """Autograd raises where a step has changed what a graph of its own needs."""
    model = mlp()
    step = ptac.optimize(plain(model, sgd(model.parameters())), on_refusal="raise")
    for batch in batches(7, 4, 12):
        step(*batch)
    x = torch.randn(4, 12)
    loss = model(x).sum()
    before = replays(step)
    step(*batches(1, 4, 12)[0])
    assert replays(step) == before + 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_rate_that_is_a_number_is_captured_again_then_refused() -> None:
    twins = Twins(mlp(), on_refusal="ignore")
    data = batches(30, 4, 12)

    def lower(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.param_groups[0]["lr"] *= 0.5

    for i, batch in enumerate(data):
        twins.call(*batch)
        if i > 10 and i % 3 == 0:
            twins.both(lower)
    assert replays(twins.step) > 10
    [reason] = reasons(twins.step)
    assert reason.startswith("an optimizer's lr is another too often for graphs")
    assert "lr=torch.tensor(...)" in reason


def test_a_rate_that_is_a_tensor_may_change(device: StrictDevice) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        lr = torch.tensor(0.05)
        return torch.optim.Adam(parameters, lr=lr, capturable=True, foreach=False)

    twins = Twins(mlp(), make=make)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.8) for o in twins.optimizers]
    for batch in batches(14, 4, 12):
        twins.call(*batch)
        for schedule in schedules:
            schedule.step()
    assert device.n_captures == 1
    assert replays(twins.step) == 14 - 1 - AHEAD


def test_a_state_that_is_loaded_means_another_capture(device: StrictDevice) -> None:
    twins = Twins(Net(), make=adam)
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    states = [copy.deepcopy(one.state_dict()) for one in twins.optimizers]
    for batch in batches(3, 4, 12):
        twins.call(*batch)
    assert device.n_captures == 1
    for one, state in zip(twins.optimizers, states, strict=True):
        one.load_state_dict(state)
    for batch in batches(8, 4, 12):
        twins.call(*batch)
    assert device.n_captures == 2


def test_two_optimizers_take_turns() -> None:
    first, second = nn.Linear(12, 5), nn.Linear(12, 5)
    models = nn.ModuleList([first, second])

    def build(models: Any, optimizer: torch.optim.Optimizer) -> Any:
        others = [sgd(models[0].parameters()), adam(models[1].parameters())]

        def step(x: Tensor, y: Tensor, i: int) -> Tensor:
            others[i].zero_grad()
            loss = F.cross_entropy(models[i](x), y)
            loss.backward()
            others[i].step()
            return loss

        return step

    twins = Twins(models, build)
    for i, batch in enumerate(batches(20, 4, 12)):
        twins.call(*batch, i % 2)
    assert graphs(twins.step) == 2
    assert replays(twins.step) >= 8


def test_gradients_are_clipped() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            return loss, norm

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4


def test_autocast_within_a_step() -> None:
    def build(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                scores = model(x)
            loss = F.cross_entropy(scores.float(), y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    twins = Twins(mlp(), build)
    for batch in batches(9, 4, 12):
        twins.call(*batch)
    assert replays(twins.step) == 4
