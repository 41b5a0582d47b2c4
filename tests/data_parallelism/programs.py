"""Programs that train by stock and divided, and how far apart the two are.

Stock is ``nn.DataParallel`` in the same process, on whole batches: without a GPU it
calls its module, so that is the program in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

import pai_torchacc as ptac
from pai_torchacc.data_parallelism import buckets, ranks

Loss = Callable[[Tensor, Tensor], Tensor]

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
PROGRAMS: dict[str, Callable[[], dict[str, Any]]] = {}


def program(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    PROGRAMS[function.__name__] = function
    return function


def data(n: int = 203) -> TensorDataset:
    """Features [n, 20] and classes [n]; the last of 32 is odd."""
    torch.manual_seed(0)
    return TensorDataset(torch.randn(n, 20), torch.randint(0, 5, (n,)))


def mlp(*between: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 32), *between, nn.ReLU(), nn.Linear(32, 5))


@dataclass
class Run:
    """What a training has shown."""

    losses: list[float] = field(default_factory=list)
    gradients: list[Tensor | None] = field(default_factory=list)
    """Of the first step."""
    parameters: list[Tensor] = field(default_factory=list)


def train(
    model: nn.Module,
    batches: Iterable[Any],
    loss_of: Loss = F.cross_entropy,
    accumulate: int = 1,
    penalty: float = 0,
) -> Run:
    """An ordinary loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = Run()
    for step, (x, y) in enumerate(batches):
        loss = loss_of(model(x), y)
        if penalty:
            loss = loss + penalty * sum(p.square().sum() for p in model.parameters())
        loss.backward()
        run.losses.append(loss.item())
        if step == 0:
            grads = [p.grad for p in model.parameters()]
            run.gradients = [None if g is None else g.clone() for g in grads]
        if (step + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    run.parameters = [p.detach().clone() for p in model.parameters()]
    return run


def epochs(loader: Any, n_steps: int) -> Iterator[Any]:
    while n_steps > 0:
        for batch in loader:
            if n_steps > 0:
                yield batch
            n_steps -= 1


def shuffled(n: int = 203, batch: int = 32) -> Any:
    return DataLoader(data(n), batch_size=batch, shuffle=True)


def relative(a: Iterable[Any], b: Iterable[Any]) -> float:
    """Norm of the difference over norm, None where there is none."""
    a, b = list(a), list(b)
    assert [t is None for t in a] == [t is None for t in b]
    flat = [
        torch.cat([t.detach().flatten().double() for t in s if t is not None])
        for s in (a, b)
    ]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


def both(once: Callable[[], Run]) -> dict[str, Any]:
    """Run by stock and divided; how far apart they are."""
    plain = once()
    with (
        ptac.enable_data_parallelism("ddp") as handle,
        catch_warnings(record=True) as w,
    ):
        simplefilter("always")
        assert handle, handle.reason
        ours = once()
        [member, *_] = found = ranks.members()
        return {
            "losses": max(
                abs(a - b) / abs(a)
                for a, b in zip(plain.losses, ours.losses, strict=True)
            ),
            "n_losses": len(ours.losses),
            "gradients": relative(plain.gradients, ours.gradients),
            "parameters": relative(plain.parameters, ours.parameters),
            "divided": [m.n_divided for m in found],
            "whole": dict(member.n_whole),
            "warned": [str(one.message) for one in w],
            "last": [float(p.double().sum()) for p in ours.parameters],
            "next": torch.rand(3).tolist(),
            "text": str(ptac.explain_parallelism()),
        }


def trained(make: Callable[[], nn.Module] = mlp, n_steps: int = 12, **how: Any) -> Any:
    """The ordinary program: a model wrapped, a loader that shuffles."""

    def once() -> Run:
        torch.manual_seed(2)
        model = nn.DataParallel(make())
        torch.manual_seed(3)
        return train(model, epochs(shuffled(), n_steps), **how)

    return both(once)


@program
def mean_loss() -> dict[str, Any]:
    return trained(n_steps=50)


@program
def sum_loss() -> dict[str, Any]:
    def loss(scores: Tensor, classes: Tensor) -> Tensor:
        return 0.03 * F.cross_entropy(scores, classes, reduction="sum")

    return trained(loss_of=loss)


@program
def contrastive_loss() -> dict[str, Any]:
    """Every sample is compared with every other of the batch."""

    def loss(scores: Tensor, classes: Tensor) -> Tensor:
        alike = F.normalize(scores) @ F.normalize(scores).T / 0.5
        return F.cross_entropy(
            alike - 9 * torch.eye(len(scores)), classes % len(scores)
        )

    return trained(loss_of=loss)


@program
def penalty_on_parameters() -> dict[str, Any]:
    return trained(penalty=1e-2)


@program
def accumulation() -> dict[str, Any]:
    return trained(accumulate=3)


class Odd(nn.Module):
    """A tied, an unused and a frozen parameter, and one that few rows use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.tied = nn.Linear(20, 20), nn.Linear(20, 20)
        self.tied.weight = self.first.weight
        self.unused, self.rare = nn.Linear(3, 3), nn.Linear(20, 20)
        self.frozen = nn.Linear(20, 5)
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tied(self.first(x).relu()).relu()
        if hidden.abs().max() > 1.2 * hidden[:1].abs().max():  # a rank's rows decide
            hidden = hidden + 0 * self.rare(hidden)
        return self.frozen(hidden)


@program
def tied_unused_frozen() -> dict[str, Any]:
    return trained(Odd)


class Experts(nn.Module):
    """Each sample goes to one of two; some ranks' rows use one alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.experts = nn.ModuleList([nn.Linear(20, 5), nn.Linear(20, 5)])

    def forward(self, x: Tensor) -> Tensor:
        result = x.new_zeros(len(x), 5)
        for which, expert in enumerate(self.experts):
            rows = ((x[:, 0] > 1.2).long() == which).nonzero().flatten()
            if len(rows):
                result = result.index_add(0, rows, expert(x[rows]))
        return result


@program
def experts() -> dict[str, Any]:
    return trained(Experts)


class Rare(nn.Module):
    """Few samples use a parameter, so that some ranks' rows use none at all."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.rare = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        result = 1 * x[:, :5].detach().requires_grad_()
        rows = (x[:, 0] > 1.2).nonzero().flatten()
        if len(rows):
            result = result.index_add(0, rows, self.rare(x[rows]))
        return result


@program
def rare_parameters() -> dict[str, Any]:
    return trained(Rare)


@program
def many_buckets() -> dict[str, Any]:
    """One for each parameter; a rank fills some of them late, some not at all."""
    n_bytes, buckets._BYTES = buckets._BYTES, 1
    try:
        return trained(lambda: nn.Sequential(Odd(), nn.Linear(5, 20), Experts()))
    finally:
        buckets._BYTES = n_bytes


@program
def transformer() -> dict[str, Any]:
    """Its keys' bias has no gradient but rounding; dropout draws other numbers."""

    class Model(nn.Module):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.layer = nn.TransformerEncoderLayer(
                20, 4, 32, dropout, batch_first=True
            )
            self.head = nn.Linear(20, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x[:, None] * torch.ones(1, 3, 1)).mean(1))

    return trained(Model)


@program
def lstm_with_batch_second() -> dict[str, Any]:
    """``dim=1``, also without a GPU, where DataParallel forgets it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(4)
            self.lstm = nn.LSTM(4, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.lstm(x)[0]

    def once() -> Run:
        model = nn.DataParallel(Model(), dim=1)
        torch.manual_seed(3)
        batches = [(x.view(-1, 5, 4).transpose(0, 1), y) for x, y in shuffled()]
        return train(model, batches, lambda h, y: F.cross_entropy(h[-1], y))

    return both(once)


@program
def all_switches() -> dict[str, Any]:
    """With every other switch on; fused kernels round differently from stock's."""
    try:
        ptac.enable("operator_fusion", "memory_pool", "memory_reuse")
        return trained()
    finally:
        ptac.disable()


@program
def convolution() -> dict[str, Any]:
    def make() -> nn.Module:
        torch.manual_seed(4)
        layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        return nn.Sequential(nn.Unflatten(1, (1, 4, 5)), *layers, nn.Linear(16, 5))

    return trained(make)


@program
def few_rows() -> dict[str, Any]:
    """A last batch of one row, and batches of one row a rank."""

    def once() -> Run:
        model = nn.DataParallel(mlp())
        torch.manual_seed(3)
        big = list(shuffled(2 * SIZE + 1, 2 * SIZE))
        return train(model, [*big, *shuffled(SIZE, SIZE)])

    return both(once)


class Backwards(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(99, -1, -1))

    def __len__(self) -> int:
        return 100


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([data(70)[i] for i in range(70)])


def from_loader(make: Callable[[], Any]) -> dict[str, Any]:
    def once() -> Run:
        model = nn.DataParallel(mlp())
        torch.manual_seed(3)
        return train(model, make())

    return both(once)


@program
def own_sampler() -> dict[str, Any]:
    return from_loader(lambda: DataLoader(data(), batch_size=30, sampler=Backwards()))


@program
def own_batches() -> dict[str, Any]:
    lists = [list(range(i, 2 * i + 3)) for i in range(4, 60, 11)]
    return from_loader(lambda: DataLoader(data(), batch_sampler=lists))


@program
def stream_with_workers() -> dict[str, Any]:
    return from_loader(lambda: DataLoader(Stream(), 16, drop_last=True, num_workers=1))


@program
def two_models_and_penalty() -> dict[str, Any]:
    """Gradients of gradients, calls before one backward, a model behind a model."""

    def once() -> Run:
        torch.manual_seed(5)
        encoder = nn.DataParallel(nn.Sequential(nn.Linear(20, 8), nn.Tanh()))
        head = nn.DataParallel(
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        )
        parameters = [*encoder.parameters(), *head.parameters()]
        optimizer, run = torch.optim.SGD(parameters, lr=0.1), Run()
        for x, _ in shuffled():
            between = encoder(x)
            fake, real = head(between), head(encoder(x.flip(1)))
            [slope] = torch.autograd.grad(fake.sum(), between, create_graph=True)
            loss = (
                fake.mean()
                - real.mean()
                + 0.1 * (slope.norm(dim=1) - 1).square().mean()
            )
            optimizer.zero_grad()
            found = torch.autograd.grad(loss, parameters, retain_graph=True)
            loss.backward()
            assert all(map(torch.equal, found, [p.grad for p in parameters]))
            run.gradients = run.gradients or [p.grad.clone() for p in parameters]
            run.losses.append(loss.item())
            optimizer.step()
        run.parameters = [p.detach().clone() for p in parameters]
        return run

    return both(once)


@program
def two_backwards() -> dict[str, Any]:
    def once() -> Run:
        model = nn.DataParallel(mlp())
        torch.manual_seed(3)
        optimizer, run = torch.optim.SGD(model.parameters(), lr=0.1), Run()
        for x, y in shuffled():
            scores = model(x)
            F.cross_entropy(scores, y).backward(retain_graph=True)
            (0.1 * scores.square().mean()).backward()
            run.losses.append(float(scores.detach().square().mean()))
            run.gradients = run.gradients or [
                p.grad.clone() for p in model.parameters()
            ]
            optimizer.step()
            optimizer.zero_grad()
        run.parameters = [p.detach().clone() for p in model.parameters()]
        return run

    return both(once)


@program
def forces() -> dict[str, Any]:
    """A model that takes gradients of its own, by a tensor that it makes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp(nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            energy = self.inner(x).square().sum()
            [force] = torch.autograd.grad(energy, x, create_graph=True)
            return force[:, :5]

    return trained(Model)


@program
def checkpoint_that_does_not() -> dict[str, Any]:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    return trained(Model)
