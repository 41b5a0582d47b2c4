"""Training steps by plans leave numbers, state and random streams as eager ones do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import switching
import torch
import torch.nn.functional as F
from planning import planned_of
from stepping import Build, Residual, Step, alike, batches, both, mlp, plain, sgd
from torch import Tensor, nn

import pai_torchacc as ptac

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": sgd,
    "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
    "adamw, foreach": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True),
    "adam, fused": lambda p: torch.optim.Adam(p, lr=1e-3, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("fused", [True, False])
def test_optimizers_go_on_as_ever(name: str, fused: bool) -> None:
    if fused:
        ptac.enable()
    both(mlp(), batches(6, 8, 12), make_optimizer=OPTIMIZERS[name])


def test_without_kernels_of_ours_weights_have_stocks_bits() -> None:
    torch.manual_seed(0)
    one, other = both(mlp(), batches(8, 8, 12))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


class Block(nn.Module):
    """A block of a Transformer, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.mlp = nn.Sequential(
            nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        x = x + self.out(mixed.reshape(x.shape))
        return self.head(x + self.mlp(self.other_norm(x))).mean(1)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutions and norms": (Residual, (4, 3, 8, 8)),
    "attention and dropout": (Block, (3, 6, 16)),
    "GELU": (
        lambda: nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 5)),
        (4, 12),
    ),
    "SiLU, Tanh, Sigmoid": (
        lambda: nn.Sequential(
            *(nn.Linear(12, 12), nn.SiLU(), nn.Linear(12, 12), nn.Tanh()),
            *(nn.Linear(12, 12), nn.Sigmoid(), nn.Linear(12, 5)),
        ),
        (4, 12),
    ),
    "no biases": (
        lambda: nn.Sequential(
            nn.Linear(12, 7, bias=False), nn.ReLU(), nn.Linear(7, 5, bias=False)
        ),
        (4, 12),
    ),
    "batch norm of vectors": (
        lambda: nn.Sequential(nn.Linear(12, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)),
        (6, 12),
    ),
    "one example": (mlp, (1, 12)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fused", [True, False])
def test_models_learn_the_same(name: str, fused: bool) -> None:
    if fused:
        ptac.enable()
    torch.manual_seed(1)
    make, sizes = MODELS[name]
    twins = both(make(), batches(5, *sizes))
    for one, other in zip(*(twin.state_dict().values() for twin in twins), strict=True):
        assert fused or torch.equal(one, other)


def test_kernels_of_ours_run() -> None:
    ptac.enable()
    model = mlp()
    step = ptac.optimize(plain(model, sgd(model.parameters())))
    data = batches(3, 8, 12)
    for batch in data:
        step(*batch)
    _, (_, lowered) = planned_of(step).plans()
    kinds = [one.kind for one in lowered.steps]
    assert kinds == [
        *("gradients", "linear", "linear", "cross_entropy"),
        *("cross_entropy_gradient", "linear_gradients", "linear_gradients"),
        *("gradients", "call"),
    ]


# --- what programs put around a step


def clipped(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss, norm

    return step


def clipped_by_value(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_value_(list(model.parameters()), 0.01)
        optimizer.step()
        return loss

    return step


def accumulated(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        for part, label in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = F.cross_entropy(model(part), label) / 2
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss

    return step


def scaled(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


def without_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.nll_loss(F.log_softmax(model(x), -1), y, reduction="sum")
        loss.backward()
        return loss

    return step


def twice(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Two updates, where the second sees what the first has changed."""

    def step(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses = []
        for _ in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss)
        return losses[0], losses[1]

    return step


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer) -> Step:
    """Gradients changed in place, parameters updated by the program itself."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad.mul_(0.5)
                parameter.sub_(parameter.grad, alpha=0.1)
        return loss

    return step


AROUND: dict[str, Build] = {
    one.__name__: one
    for one in (
        *(clipped, clipped_by_value, accumulated, scaled),
        *(without_optimizer, twice, by_hand),
    )
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("fused", [True, False])
def test_what_surrounds_a_step(name: str, fused: bool) -> None:
    if fused:
        ptac.enable()
    eagerly = 1 if name == "clipped" else 2
    # A scaler makes its scale in the first step, and keeps it.
    on_refusal = "ignore" if name == "scaled" else "raise"
    both(mlp(), batches(6, 8, 12), AROUND[name], eagerly=eagerly, on_refusal=on_refusal)


def adversaries(maker: nn.Module, judge: nn.Module) -> Step:
    adams = [torch.optim.Adam(m.parameters(), lr=1e-3) for m in (maker, judge)]
    doubt = F.binary_cross_entropy_with_logits

    def step(real: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        adams[1].zero_grad()
        made = maker(noise)
        ones, zeros = torch.ones(5, 1), torch.zeros(5, 1)
        of_judge = doubt(judge(real), ones) + doubt(judge(made.detach()), zeros)
        of_judge.backward()
        adams[1].step()
        adams[0].zero_grad()
        of_maker = doubt(judge(made), ones)
        of_maker.backward()
        adams[0].step()
        return of_judge, of_maker

    return step


def test_two_networks_that_learn_from_each_other() -> None:
    ptac.enable()
    models = (
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)),
        nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)),
    )
    data = [(torch.randn(5, 6), torch.randn(5, 4)) for _ in range(5)]
    twins = models, copy.deepcopy(models)
    steps = [adversaries(*pair) for pair in twins]
    planned = ptac.optimize(steps[0], on_refusal="raise")
    for batch in data:
        for ours, theirs in zip(planned(*batch), steps[1](*batch), strict=True):
            torch.testing.assert_close(ours.detach(), theirs.detach())
    assert planned_of(planned).counts()["planned_calls"] == 3
    for one, other in zip(*twins, strict=True):
        alike(one, other)


def test_modules_and_optimizers_may_be_arguments() -> None:
    ptac.enable()

    @ptac.optimize(on_refusal="raise")
    def step(model: nn.Module, optimizer: Any, x: Tensor, y: Tensor) -> Tensor:
        return plain(model, optimizer)(x, y)

    model = mlp()
    twins = model, copy.deepcopy(model)
    optimizers = [sgd(twin.parameters()) for twin in twins]
    for x, y in batches(5, 8, 12):
        step(twins[0], optimizers[0], x, y)
        plain(twins[1], optimizers[1])(x, y)
    assert planned_of(step).counts()["planned_calls"] == 3
    alike(*twins)
    third = mlp()
    before = copy.deepcopy(third.state_dict())
    step(third, sgd(third.parameters()), *batches(1, 8, 12)[0])
    assert not torch.equal(before["0.weight"], third.state_dict()["0.weight"])
    alike(*twins)


class Wide(nn.Module):
    """Two layers whose biases have equal gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(12, 5), mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(x) + self.deep(x)


@pytest.mark.parametrize("name", ["plain", "clipped_by_value", "by_hand"])
def test_equal_gradients_are_two_tensors(name: str) -> None:
    ptac.enable()
    build = {**AROUND, "plain": plain}[name]
    _, model = both(Wide(), batches(5, 8, 12), build)
    grads = [parameter.grad.data_ptr() for parameter in model.parameters()]
    assert len(set(grads)) == len(grads)


def normed(act: nn.Module, channels_last: bool) -> nn.Module:
    """Two normalizations, of which one has an activation behind it."""
    torch.manual_seed(2)
    layers = (nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), act)
    more = (nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16))
    model = nn.Sequential(*layers, *more, nn.Flatten(), nn.Linear(16 * 32 * 32, 5))
    return model.to(memory_format=torch.channels_last) if channels_last else model


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    "act",
    [nn.ReLU(), nn.ReLU(inplace=True), nn.ReLU6(), nn.SiLU(), nn.Hardswish()],
    ids=str,
)
def test_norms_run_with_their_activations(act: nn.Module, channels_last: bool) -> None:
    data = batches(4, 8, 3, 32, 32)
    if channels_last:
        last = torch.channels_last
        data = [(x.contiguous(memory_format=last), y) for x, y in data]
    ptac.enable()
    with switching.pins(("batch_norm_act", "batch_norm_act_backward")):
        model = normed(act, channels_last)
        both(model, data)
        step = ptac.optimize(plain(model, sgd(model.parameters())), on_refusal="raise")
        for batch in data[:3]:
            step(*batch)
        lowered = planned_of(step).plans()[-1][1]
    kinds = {one.name: one.kind for one in lowered.steps}
    names = [name for name, kind in kinds.items() if kind == "norm_training"]
    # The gradient that comes from Flatten does not lie as channels_last.
    n_merged = 1 if channels_last else 2
    assert len(names) == n_merged
    assert any(" + " in name for name in names)
    assert sum(kind == "norm_gradients" for kind in kinds.values()) == n_merged


def test_norms_that_others_read_stay_apart() -> None:
    ptac.enable()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.last = nn.BatchNorm2d(16), nn.Linear(16, 5)

        def forward(self, x: Tensor) -> Tensor:
            y = self.norm(x)
            return self.last((F.silu(y) + y * 2).mean((2, 3)))

    both(Net(), batches(5, 8, 16, 16, 16))
