"""What a program puts around and into a training step is called as often as eagerly."""

from __future__ import annotations

import contextlib
import copy
import cProfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import planned_of, reasons
from stepping import Build, Step, alike, batches, both, mlp, plain, sgd
from torch import Tensor, nn
from torch.optim import optimizer as optimizers

import pai_torchacc as ptac


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    ptac.enable()
    yield


def refused(build: Build, text: str, n_steps: int = 6) -> None:
    """Twins learn the same, and the optimized one has no plan because of that."""
    model = mlp()
    twins = model, copy.deepcopy(model)
    steps = [build(twin, sgd(twin.parameters())) for twin in twins]
    optimized = ptac.optimize(steps[0], on_refusal="ignore")
    for batch in batches(n_steps, 8, 12):
        optimized(*batch)
        steps[1](*batch)
    alike(*twins)
    assert planned_of(optimized).counts()["planned_calls"] == 0
    assert any(text in reason for reason in reasons(optimized)), reasons(optimized)


def halve(optimizer: Any, *args: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.mul_(0.5)


def test_hooks_of_all_optimizers() -> None:
    handle = optimizers.register_optimizer_step_pre_hook(halve)
    try:
        refused(plain, "hooks listen")
    finally:
        handle.remove()


def test_hooks_of_one_optimizer() -> None:
    seen = []

    def build(model: nn.Module, optimizer: Any) -> Step:
        optimizer.register_step_pre_hook(halve)
        optimizer.register_step_post_hook(
            lambda *args: seen.append(torch.is_grad_enabled())
        )
        return plain(model, optimizer)

    both(mlp(), batches(6, 8, 12), build)
    assert seen == [True] * 12


def test_a_step_that_has_been_replaced() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        original = optimizer.step

        def step() -> None:
            halve(optimizer)
            original()

        optimizer.step = step
        return plain(model, optimizer)

    refused(build, "has been replaced")


class Decayed(torch.optim.SGD):
    """Does more than its base."""

    def step(self, closure: Any = None) -> None:
        super().step()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.mul_(0.9)


def test_a_step_within_a_step() -> None:
    torch.optim.SGD([torch.ones(1)], 0.1)  # whose class has hooks from now on

    def build(model: nn.Module, optimizer: Any) -> Step:
        return plain(model, Decayed(model.parameters(), lr=0.1))

    both(mlp(), batches(6, 8, 12), build)


class Own(torch.optim.Optimizer):
    """Puts other data behind its parameters, and asks autograd for a number."""

    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:
        x = torch.ones(1, requires_grad=True)
        (one,) = torch.autograd.grad(x.sum(), x)
        for parameter in self.param_groups[0]["params"]:
            parameter.data = parameter.data - 0.1 * parameter.grad * one


@pytest.mark.parametrize("twice", [True, False])
def test_an_optimizer_of_the_programs(twice: bool) -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        own = Own(model.parameters())
        step = plain(model, own)

        def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return step(x, y), step(x, y)

        return two if twice else step

    both(mlp(), batches(6, 8, 12), build)


class Counting(torch.optim.lr_scheduler.StepLR):
    """A schedule that counts its steps."""

    n = 0

    def step(self, epoch: Any = None) -> None:
        self.n += 1
        super().step()


def test_a_schedule_that_does_more() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        schedule, step = Counting(optimizer, 2, 0.5), plain(model, optimizer)

        def scheduled(x: Tensor, y: Tensor) -> Tensor:
            loss = step(x, y)
            schedule.step()
            return loss

        return scheduled

    refused(build, "has been replaced")


def test_a_schedule_of_the_programs() -> None:
    class Warmed:
        n = 0

        def step(self, optimizer: Any) -> None:
            self.n += 1
            optimizer.param_groups[0]["lr"] = 0.01 * self.n

    def build(model: nn.Module, optimizer: Any) -> Step:
        schedule, step = Warmed(), plain(model, optimizer)

        def scheduled(x: Tensor, y: Tensor) -> Tensor:
            schedule.step(optimizer)
            return step(x, y)

        return scheduled

    refused(build, "an optimizer's numbers are changed")


def test_a_meter() -> None:
    class Meter:
        n = 0

    def build(model: nn.Module, optimizer: Any) -> Step:
        meter, step = Meter(), plain(model, optimizer)

        def counted(x: Tensor, y: Tensor) -> Tensor:
            meter.n += 1
            return step(x, y)

        return counted

    refused(build, "class")


def test_a_history() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        history: list[int] = []
        step = plain(model, optimizer)

        def kept(x: Tensor, y: Tensor) -> Tensor:
            history.append(len(x))
            return step(x, y)

        return kept

    refused(build, "a container changes")


def test_an_operator_that_takes_functions() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        step = plain(model, optimizer)

        def chosen(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            loss = step(x, y)
            more = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x.detach(),))
            return loss, more

        return chosen

    refused(build, "takes functions", n_steps=3)


def test_an_error_that_is_caught() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        other = torch.optim.SGD([torch.ones(1, requires_grad=True)], 0.1)
        other.register_step_pre_hook(lambda *args: 1 / 0)
        step = plain(model, optimizer)

        def careful(x: Tensor, y: Tensor) -> Tensor:
            with contextlib.suppress(ZeroDivisionError):
                other.step()
            return step(x, y)

        return careful

    refused(build, "an error is raised and caught")


def test_a_norm_that_is_not_finite() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            (F.cross_entropy(model(x), y) * torch.inf).backward()
            try:
                nn.utils.clip_grad_norm_(
                    model.parameters(), 1.0, error_if_nonfinite=True
                )
            except RuntimeError:
                return
            optimizer.step()

        return step

    model = mlp()
    before = copy.deepcopy(model.state_dict())
    step = ptac.optimize(build(model, sgd(model.parameters())), on_refusal="ignore")
    for batch in batches(4, 8, 12):
        step(*batch)
    assert planned_of(step).counts()["planned_calls"] == 0
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_logs_of_what_is_changed_before_the_loss() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        rows = nn.Parameter(torch.ones(8, 5), requires_grad=False)
        model.register_parameter("rows", rows)

        def step(x: Tensor, y: Tensor) -> Tensor:
            optimizer.zero_grad()
            logs = F.log_softmax(model(x) + rows, -1)
            rows.mul_(0.5)
            loss = F.nll_loss(logs, y)
            loss.backward()
            optimizer.step()
            return loss

        return step

    both(mlp(), batches(6, 8, 12), build)


def test_weights_that_are_tied_later() -> None:
    models = [nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    steps = [plain(model, sgd(model.parameters())) for model in models]
    steps[0] = ptac.optimize(steps[0])
    for at, (x, y) in enumerate(batches(8, 4, 6)):
        if at == 4:
            for model in models:
                model[1].weight = model[0].weight
        for step in steps:
            step(x, y)
        alike(*models)


def test_a_buffer_that_learns_later() -> None:
    models = [mlp() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def build(model: nn.Module) -> Step:
        model.register_buffer("scale", torch.ones(5))
        optimizer = sgd(model.parameters())

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            F.cross_entropy(model(x) * model.scale, y).backward()
            optimizer.step()

        return step

    steps = [build(model) for model in models]
    steps[0] = ptac.optimize(steps[0])
    for at, (x, y) in enumerate(batches(6, 8, 12)):
        if at == 4:
            for model in models:
                model.scale.requires_grad_()
        for step in steps:
            step(x, y)
    torch.testing.assert_close(models[0].scale.grad, models[1].scale.grad)
    assert models[0].scale.grad is not None


def test_a_profile_of_pythons_goes_on() -> None:
    model = mlp()
    step = ptac.optimize(plain(model, sgd(model.parameters())))
    profile = cProfile.Profile()
    profile.enable()
    for batch in batches(3, 8, 12):
        step(*batch)
    profile.disable()
    assert profile.getstats()
    for batch in batches(4, 8, 12):
        step(*batch)
    assert planned_of(step).counts()["planned_calls"] > 0
