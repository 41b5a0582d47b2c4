"""Training steps of the zoo's models by plans, beside stock and ``enable()`` alone.

``python -m benchmarks.planned_steps [--threads N] [--csv FILE] [--all] [NAME ...]``
prints the times of the least blocks and their ratios; names are groups or parts of
models' names. Each way trains a copy of its own, in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import pai_torchacc as ptac
from benchmarks.planned import print_table, timed
from benchmarks.zoo.model import MODELS


def step_of(name: str) -> Callable[[], Any]:
    """One step of a model in training: zeroed gradients, loss, backward, update."""
    torch.manual_seed(0)
    model = MODELS[name]
    net, inputs, target = model.make()
    net.train()
    optimizer = model.optimizer(net.parameters())
    loss_of = model.loss

    def step() -> Any:
        optimizer.zero_grad()
        loss = loss_of(net(*inputs), target)
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(name: str) -> tuple[Any, ...] | None:
    """A row of the table; None where the step is not planned."""
    ptac.enable()
    planned = ptac.optimize(step_of(name), on_refusal="ignore")
    for _ in range(4):
        planned()
    found = planned.__ptac_planned__
    if found.counts()["planned_calls"] == 0:
        print(f"{name:50} not planned: {', '.join(found.counts()['reasons'])}")
        return None
    n_steps = len(found.plans()[-1][1].steps)

    timings = timed(step_of(name), planned, step_of(name))
    return (*(us for _, us in timings), n_steps)


if __name__ == "__main__":
    print_table(measure, __doc__)
