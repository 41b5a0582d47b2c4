"""Programs that dividing would change: each process has to compute whole batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from programs import Run, both, mlp, program, shuffled, train, trained
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@program
def batch_norm() -> dict[str, Any]:
    return trained(lambda: mlp(nn.BatchNorm1d(32)))


class AcrossSamples(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.inner(x)
        return scores - 1e-3 * scores.mean(0)


@program
def across_samples() -> dict[str, Any]:
    return trained(AcrossSamples)


class Counting(nn.Module):
    """Keeps a statistic of the batch that no gradient shows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()
        self.register_buffer("largest", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.largest.copy_(torch.maximum(self.largest, x.max()))
        return self.inner(x)


@program
def statistic_in_a_buffer() -> dict[str, Any]:
    return trained(Counting)


class LossInside(nn.Module):
    """Gives one number for a batch, as models of transformers do with labels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).square().mean()


@program
def loss_inside() -> dict[str, Any]:
    return trained(LossInside, loss_of=lambda loss, _: loss)


@program
def checkpoint_that_reenters() -> dict[str, Any]:
    """Its backward pass uses the parameters themselves: not to be divided."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            x = x.detach().requires_grad_()
            return checkpoint(self.inner, x, use_reentrant=True)

    return trained(Model)


def alone(make: Callable[[], nn.Module], loss: Callable[[Any, Tensor], Tensor]) -> Any:
    """With a loss that also looks at the model."""

    def once() -> Run:
        model = nn.DataParallel(make())
        torch.manual_seed(3)
        return train(
            model,
            shuffled(),
            lambda scores, classes: (
                F.cross_entropy(scores, classes) + loss(model.module, scores)
            ),
        )

    return both(once)


class KeepingLoss(nn.Module):
    """An auxiliary loss of some rows, in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.inner(x)
        self.kept = {"loss": self.to_keep(scores).square().mean()}
        return scores

    def to_keep(self, scores: Tensor) -> Tensor:
        return scores


class KeepingPenalty(KeepingLoss):
    def to_keep(self, scores: Tensor) -> Tensor:
        return self.inner[0].weight


@program
def loss_in_an_attribute() -> dict[str, Any]:
    return alone(KeepingLoss, lambda m, _: m.kept["loss"])


@program
def penalty_in_an_attribute() -> dict[str, Any]:
    """The same on all ranks, and its gradient would be there once for each."""
    return alone(KeepingPenalty, lambda m, _: m.kept["loss"])


class KeepingNumber(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.n_seen = mlp(), 0

    def forward(self, x: Tensor) -> Tensor:
        self.n_seen += len(x)
        return self.inner(x)


@program
def number_in_an_attribute() -> dict[str, Any]:
    return alone(KeepingNumber, lambda m, _: torch.tensor(float(m.n_seen)))


@program
def hook_in_the_model() -> dict[str, Any]:
    """It sees whole batches, and only those of the script's own calls."""
    seen: list[Tensor] = []

    def make() -> nn.Module:
        model = mlp()
        model[0].register_forward_hook(lambda *seen_now: seen.append(seen_now[2]))
        return model

    def loss(_: Any, scores: Tensor) -> Tensor:
        hidden = seen.pop()
        assert not seen and len(hidden) == len(scores)
        return hidden.square().mean()

    return alone(make, loss)


@program
def parameter_of_others() -> dict[str, Any]:
    """One that the module uses without owning it."""

    def once() -> Run:
        other = mlp()

        class Borrowing(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = mlp()

            def forward(self, x: Tensor) -> Tensor:
                return self.inner(x) + nn.functional.linear(x, other[0].weight)[:, :5]

        run = train(nn.DataParallel(Borrowing()), shuffled())
        run.parameters.append(other[0].weight.grad)
        return run

    return both(once)


@program
def argument_in_place() -> dict[str, Any]:
    """The script sees what a model does to its batch, once a call."""

    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x.mul_(2))

    def once() -> Run:
        torch.manual_seed(3)
        batches = list(shuffled())
        run = train(nn.DataParallel(Doubling()), batches)
        run.parameters += [x for x, _ in batches]
        return run

    return both(once)


@program
def two_sizes() -> dict[str, Any]:
    """An argument without a row for each sample."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()

        def forward(self, pair: Any) -> Tensor:
            x, mask = pair
            return self.inner(x * mask)

    def once() -> Run:
        torch.manual_seed(3)
        mask = torch.ones(20)
        batches = [((x, mask), y) for x, y in shuffled()]
        return train(nn.DataParallel(Masked()), batches)

    return both(once)


class OwnWay(nn.DataParallel[Any]):
    def scatter(self, *args: Any) -> Any:
        return super().scatter(*args)


@program
def own_scatter() -> dict[str, Any]:
    def once() -> Run:
        torch.manual_seed(3)
        return train(OwnWay(mlp()), shuffled())

    return both(once)
