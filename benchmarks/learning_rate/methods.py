"""Who trains: ours, stock, textbook rules, and peers where they are installed.

Packages of peers are in benchmarks/peers-requirements.txt. Each is set as its authors
advise; most need neither the user's rate nor the momentum, and are then run once for
all cases that differ in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

import pai_torchacc as ptac
from benchmarks.learning_rate.problems import Case
from pai_torchacc.commands.usage import UsageError

OURS, STOCK = "adaptive_lr", "stock"

Parameters = Iterable[Tensor]
Before = Callable[[Optimizer, float], None]
"""Called with the optimizer and the loss before each step."""


@dataclass(frozen=True)
class Method:
    """A way to train, and what of the user's settings it goes by."""

    name: str
    make: Callable[[Parameters, Case], Optimizer]
    package: str = ""
    takes_lr: bool = True
    takes_momentum: bool = True
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    rate: Callable[[Case, int], Before] | None = None
    """From the case and the batches of an epoch: what sets the rate of each step."""

    def key(self, case: Case) -> tuple[Any, ...]:
        """Equal for cases that this method trains alike."""
        lr = case.lr if self.takes_lr else None
        return case.problem.name, lr, case.momentum if self.takes_momentum else None


def sgd(parameters: Parameters, case: Case) -> Optimizer:
    """What users write."""
    return SGD(parameters, lr=case.lr, momentum=case.momentum)


@contextmanager
def adaptive() -> Iterator[None]:
    """Ours; raises UsageError where it cannot be switched on."""
    with ptac.enable_adaptive_lr() as handle:
        if not handle:
            raise UsageError(f"adaptive_lr is not active: {handle.reason}")
        yield


def textbook(case: Case, n_batches: int) -> Before:
    """Polyak's rate times 1 - momentum, which at most doubles in an epoch.

    Of the minibatch, unsmoothed, with 0 as the lowest loss (Loizou et al., 2021: SPS).
    """
    growth = 2 ** (1 / n_batches)
    last = math.inf

    def before(optimizer: Optimizer, loss: float) -> None:
        nonlocal last
        gradients = [p.grad for g in optimizer.param_groups for p in g["params"]]
        square = sum(float(g.square().sum()) for g in gradients)
        lr = (1 - case.momentum) * loss / square if square > 0 else 0.0
        last = min(lr if math.isfinite(lr) else 0.0, last * growth)
        for group in optimizer.param_groups:
            group["lr"] = last

    return before


class Dog(Optimizer):
    """Distance over gradients (Ivgi, Hinder and Carmon, 2023), without averaging.

    The rate is the largest distance from the beginning, over the root of all squared
    gradients so far; the first distance is 1e-4 (1 + norm of the parameters).
    """

    def __init__(self, parameters: Parameters):
        super().__init__(parameters, {})
        self.params = [p for g in self.param_groups for p in g["params"]]
        self.begin = [p.detach().clone() for p in self.params]
        self.distance = 1e-4 * (1 + _norm(self.begin))
        self.squares = 1e-8

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Move; the distance is that before this step."""
        moved = [p - b for p, b in zip(self.params, self.begin, strict=True)]
        self.distance = max(self.distance, _norm(moved))
        gradients = [p.grad for p in self.params]
        self.squares += _norm(gradients) ** 2
        lr = self.distance / math.sqrt(self.squares)
        for p, g in zip(self.params, gradients, strict=True):
            p.sub_(g, alpha=lr)


def _norm(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in tensors))


def _dog(parameters: Parameters, case: Case) -> Optimizer:
    return Dog(parameters)


def _prodigy(parameters: Parameters, case: Case) -> Optimizer:
    from prodigyopt import Prodigy

    return Prodigy(parameters, lr=1.0)


def _dadapt_sgd(parameters: Parameters, case: Case) -> Optimizer:
    from dadaptation import DAdaptSGD

    return DAdaptSGD(parameters, lr=1.0, momentum=case.momentum)


def _dadapt_adam(parameters: Parameters, case: Case) -> Optimizer:
    from dadaptation import DAdaptAdam

    return DAdaptAdam(parameters, lr=1.0)


def _mechanic(parameters: Parameters, case: Case) -> Optimizer:
    from mechanic_pytorch import mechanize

    return mechanize(SGD)(parameters, lr=1.0, momentum=case.momentum)


def _schedule_free(parameters: Parameters, case: Case) -> Optimizer:
    from schedulefree import SGDScheduleFree

    return SGDScheduleFree(parameters, lr=case.lr, momentum=case.momentum or 0.9)


METHODS = {
    m.name: m
    for m in (
        Method(STOCK, sgd),
        Method(OURS, sgd, around=adaptive),
        Method("textbook", sgd, takes_lr=False, rate=textbook),
        Method("dog", _dog, "", False, False),
        Method("prodigy", _prodigy, "prodigyopt", False, False),
        Method("dadapt_sgd", _dadapt_sgd, "dadaptation", takes_lr=False),
        Method("dadapt_adam", _dadapt_adam, "dadaptation", False, False),
        Method("mechanic", _mechanic, "mechanic-pytorch", takes_lr=False),
        Method("schedule_free", _schedule_free, "schedulefree"),
    )
}
"""By name."""


def chosen(names: list[str] | None) -> list[Method]:
    """Those of these names; without names, all but stock itself.

    Raises
    ------
    UsageError
        A name is nobody's.
    """
    wanted = names or [name for name in METHODS if name != STOCK]
    for name in wanted:
        if name not in METHODS:
            raise UsageError(f"no method is {name}: {', '.join(METHODS)}")
    return [METHODS[name] for name in dict.fromkeys(wanted)]


def versions(methods: list[Method]) -> dict[str, str | None]:
    """Versions of packages that these are in; None for what is not installed."""
    found: dict[str, str | None] = {}
    for package in dict.fromkeys(m.package for m in methods if m.package):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found
