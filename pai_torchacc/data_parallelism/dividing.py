"""One call of a module, its batch divided over the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from pai_torchacc.data_parallelism import randomness
from pai_torchacc.data_parallelism.batches import Call, Results
from pai_torchacc.data_parallelism.functions import (
    Rows,
    Shares,
    Whole,
    tied,
    used,
)
from pai_torchacc.data_parallelism.group import Group

_FAILED = 2
"""Told instead of whether results are rows."""


class Undividable(Exception):
    """A call cannot be divided, on every rank at once; the text says why."""


class DifferentBatches(RuntimeError):
    """The ranks did not make the same call; all of them find it out."""

    def __init__(self, is_by_script: bool):
        super().__init__(
            "the processes that train together were given different batches, or a "
            "model in different modes: "
            "each has to run the same program on the same random numbers"
        )
        self.is_by_script = is_by_script
        """Whether all of them have drawn from a DistributedSampler."""


@dataclass(frozen=True)
class Told:
    """What ranks tell each other of a call, beside what it is called with."""

    manner: int = 0
    """How the model is called; a number that has to be the same on all."""
    has_drawn: bool = False
    """Whether the script has drawn from a DistributedSampler."""
    waits: bool = False
    """Whether values on a GPU are waited for, and compared too."""


def compare(
    call: Call, group: Group, told: Told, results: tuple[int, int] = (0, 0)
) -> list[list[int]]:
    """Two numbers of each rank, once all are found to make the same call.

    Raises
    ------
    DifferentBatches
    """
    is_here = all(t.device.type == "cpu" for t in call.tensors)
    digest = call.digest(with_values=told.waits or is_here)
    rows = group.exchange([digest, told.manner, told.has_drawn, *results])
    if any(row[:2] != rows[0][:2] for row in rows):
        raise DifferentBatches(all(row[2] for row in rows))
    return [row[3:] for row in rows]


def divided(module: nn.Module, call: Call, group: Group, told: Told = Told()) -> Any:
    """What ``module`` gives for a whole batch, of which each rank computes its rows.

    Gradients with respect to parameters and arguments are those of the whole batch, on
    every rank. So a loss of any kind may follow.

    Raises
    ------
    Undividable
        On all ranks: a rank's module failed, or what it gave cannot be joined.
    DifferentBatches
    """
    device = device_of(module)
    shares = Shares(group, call.dim, call.shares(group.size))
    own = Call(*call.with_tensors(Rows.apply(shares, *call.tensors)), call.dim)
    failure, results = "", None
    with randomness.of_rank(group.rank, device):
        try:
            results = Results(_run(module, own.on(device), group), call.dim, own.n_rows)
        except Exception as error:  # which the whole batch brings again, or does not
            failure = f"on its share of a batch it raised {type(error).__name__}"
    found = (_FAILED, 0) if results is None else (results.are_rows, results.digest())
    everyones = compare(call, group, told, found)
    if results is None or any(status == _FAILED for status, _ in everyones):
        raise Undividable(failure or "another process failed on its share of a batch")
    if not all(are_rows for are_rows, _ in everyones):
        raise Undividable("what it gives has no row for each of its batch's")
    if any(row != everyones[0] for row in everyones):
        raise Undividable("what it gives has another shape in another process")
    return results.with_tensors(Whole.apply(shares, *results.tensors))


def by_script(module: nn.Module, call: Call, group: Group) -> Any:
    """What ``module`` gives for a batch of this rank's own; gradients are averaged.

    Buffers are first made those of rank 0, as DistributedDataParallel does.
    """
    if torch.is_grad_enabled():
        group.copy_from_first(module.buffers())
    return _run(module, call.on(device_of(module)), group, 1 / group.size)


def _run(module: nn.Module, call: Call, group: Group, weight: float = 1) -> Any:
    args, kwargs = call.with_tensors(call.tensors)
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if not named or not torch.is_grad_enabled():
        return module(*args, **kwargs)
    own = used(group, weight, list(named.values()))
    value = functional_call(module, dict(zip(named, own, strict=True)), args, kwargs)
    return tied(value, own)


def device_of(module: nn.Module) -> torch.device:
    """Where its first parameter is; the CPU for a module of none."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))
