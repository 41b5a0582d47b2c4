"""Programs on which plans of training steps went wrong once."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from planning import planned_of, reasons
from stepping import Step, alike, batches, both, mlp, plain, sgd
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.graph import planned
from pai_torchacc.graph.recording import Recorder


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    ptac.enable()
    yield


def test_gradients_read_after_they_are_clipped() -> None:
    def build(model: nn.Module, optimizer: Any) -> Step:
        def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            return loss, torch.stack([grad.square().sum() for grad in grads]).sum()

        return step

    both(mlp(), batches(6, 8, 12), build)


class Encoder(nn.Module):
    """A layer of torch's, whose dropout works on transposed tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x).mean(1))


class Transposed(nn.Module):
    """Dropout on a transposed tensor before anything else that is random."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 6), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.first(x).transpose(1, 2), 0.3, self.training)
        return self.last((x @ x.transpose(1, 2) @ torch.ones(6, 16)).mean(1))


@pytest.mark.parametrize("kind", [Encoder, Transposed])
def test_what_is_drawn_into_a_transposed_tensor(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    both(kind(), batches(6, 3, 6, 16))


class Skip(nn.Module):
    """One gradient reaches two layers of different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.short, self.long = nn.Linear(12, 5), nn.Linear(7, 5)
        self.first, self.norm = nn.Linear(12, 7), nn.BatchNorm1d(7)

    def forward(self, x: Tensor) -> Tensor:
        return self.long(F.relu(self.norm(self.first(x)))) + self.short(x)


def test_a_gradient_of_two_layers() -> None:
    both(Skip(), batches(6, 8, 12))


class Drawn(nn.Module):
    """Random numbers, then a convolution that refuses what is not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(16)
        self.conv = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.norm(x), 0.1, self.training)
        return self.last(F.relu(self.conv(x)).mean((2, 3)))


def test_numbers_that_are_not_finite() -> None:
    data = batches(6, 4, 16, 16, 16)
    data[4][0][0, 0, 0, 0] = torch.inf
    models = [Drawn() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    steps = [plain(model, sgd(model.parameters())) for model in models]
    steps[0] = ptac.optimize(steps[0], on_refusal="raise")
    for x, y in data:
        losses = []
        for step in steps:
            torch.manual_seed(1)
            losses.append(step(x, y).detach())
        torch.testing.assert_close(*losses, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert planned_of(steps[0]).counts()["planned_calls"] == 4
    assert losses[0].isnan()


def test_a_target_that_is_out_of_range_after_effects() -> None:
    model = nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    models = model, copy.deepcopy(model)
    steps = [plain(one, sgd(one.parameters())) for one in models]
    steps[0] = ptac.optimize(steps[0], on_refusal="raise")
    for at, (x, y) in enumerate(batches(7, 8, 12)):
        y[3] = 9 if at == 4 else y[3]
        for step in steps:
            if at == 4:
                with pytest.raises(IndexError, match="out of bounds"):
                    step(x, y)
            else:
                step(x, y)
        alike(*models)
    assert planned_of(steps[0]).counts()["planned_calls"] >= 3


def test_groups_that_are_added() -> None:
    models = [mlp() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [torch.optim.SGD(m[0].parameters(), 0.1) for m in models]
    steps = [plain(*pair) for pair in zip(models, optimizers, strict=True)]
    steps[0] = ptac.optimize(steps[0])
    for at, (x, y) in enumerate(batches(8, 8, 12)):
        if at == 4:
            for model, optimizer in zip(models, optimizers, strict=True):
                optimizer.add_param_group({"params": list(model[2].parameters())})
        for model, step in zip(models, steps, strict=True):
            if at < 4:
                model[2].zero_grad()
            step(x, y)
        alike(*models)


def test_a_list_that_grows() -> None:
    models = [mlp() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def build(model: nn.Module, layers: list[nn.Module]) -> Step:
        optimizer = sgd(model.parameters())

        def step(x: Tensor, y: Tensor) -> None:
            optimizer.zero_grad()
            for layer in layers:
                x = layer(x)
            F.cross_entropy(x, y).backward()
            optimizer.step()

        return step

    lists = [list(model) for model in models]
    steps = [build(*pair) for pair in zip(models, lists, strict=True)]
    steps[0] = ptac.optimize(steps[0])
    for at, (x, y) in enumerate(batches(8, 8, 12)):
        if at == 4:
            for layers in lists:
                layers.append(nn.Tanh())
        for step in steps:
            step(x, y)
        alike(*models)
    assert planned_of(steps[0]).counts()["planned_calls"] >= 3


def test_numbers_of_pythons_are_not_returned_again() -> None:
    model = mlp()
    optimizer = sgd(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    @ptac.optimize(on_refusal="ignore")
    def step(x: Tensor, y: Tensor) -> tuple[Tensor, float]:
        loss = plain(model, optimizer)(x, y)
        schedule.step()
        return loss, optimizer.param_groups[0]["lr"]

    rates = [step(*batch)[1] for batch in batches(4, 8, 12)]
    assert rates == [0.05 * 0.5**n for n in range(1, 5)]
    assert "a number of Python's is returned" in reasons(step)


@pytest.mark.parametrize("fault", ["a tensor of tensors", "a split by a tensor"])
def test_layers_of_attention_do_not_hide_functions(fault: str) -> None:
    class Net(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            if fault == "a tensor of tensors":
                x = x * torch.tensor([x.detach().mean(), x.detach().std()])[0]
            else:
                x = torch.tensor_split(x, torch.tensor([2]))[0]
            return super().forward(x).mean(0, keepdim=True)

    model = Net()
    step = ptac.optimize(plain(model, sgd(model.parameters())), on_refusal="ignore")
    for x, y in batches(3, 3, 6, 16):
        step(x, y[:1])
    assert planned_of(step).counts()["planned_calls"] == 0
    texts = {
        "a tensor of tensors": "a tensor is made of others' numbers",
        "a split by a tensor": "tensor_split is not seen by the dispatcher",
    }
    assert texts[fault] in reasons(step)


def test_calls_that_all_differ_are_not_recorded_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, recorders = mlp(), []

    def make(*args: Any) -> Any:
        recorders.append(None)
        return Recorder(*args)

    monkeypatch.setattr(planned, "Recorder", make)

    @ptac.optimize(on_refusal="ignore")
    def step(x: Tensor, y: Tensor, index: int) -> float:
        return F.cross_entropy(model(x), y).item() + index

    ((x, y),) = batches(1, 8, 12)
    for index in range(200):
        step(x, y, index)
    assert 3 <= len(recorders) <= 16
    assert "a tensor's number is read in Python" in reasons(step)
