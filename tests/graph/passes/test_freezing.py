"""``optimize(freeze=True)``: what depends on weights alone is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from planning import by_plan, close, counts, kinds, reasons, twin
from switching import accelerated
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

ROWS = [
    ("winograd_2x2", 3),
    ("winograd_4x2", 3),
    ("implicit", 3),
    ("lowered", 3),
    ("packed", 1),
]
"""And kernels that they can do."""


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    torch.manual_seed(0)
    with accelerated():
        yield


def runnable(algorithm: str, op: str = "conv2d") -> list[str]:
    """Rows by it that this CPU can run."""
    (rows,) = (rows for name, _, rows in _C.operators() if name == op)
    names = (name for name, _, can_run, _ in rows if can_run)
    return [name for name in names if name.rpartition("_")[0] == algorithm]


@contextmanager
def pinned(row: str, op: str = "conv2d") -> Iterator[None]:
    """All convolutions, or layers, by this row."""
    _C.pin(op, row)
    try:
        yield
    finally:
        _C.pin(op, None)


def block(inputs: int = 16, kernel: int = 3) -> nn.Module:
    """A convolution, its norm with statistics that differ, and ReLU."""
    module = nn.Sequential(
        nn.Conv2d(inputs, 32, kernel, padding=kernel // 2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
    )
    norm = module[1]
    assert isinstance(norm.running_mean, Tensor) and isinstance(
        norm.running_var, Tensor
    )
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    return module.eval()


def frozen(module: nn.Module, *args: Tensor) -> None:
    """Have calls like this one be planned, with weights frozen."""
    ptac.optimize(module, freeze=True, on_refusal="ignore")
    with torch.no_grad():
        for _ in range(2):
            module(*args)
    assert counts(module) == (1, 1)


@pytest.mark.parametrize(("algorithm", "kernel"), ROWS)
def test_kept_weights_give_the_same_bits_at_each_call(
    algorithm: str, kernel: int
) -> None:
    rows = runnable(algorithm)
    assert rows
    for row in rows:
        model = block(kernel=kernel)
        other = twin(model)
        with pinned(row):
            x = torch.randn(2, model[0].in_channels, 20, 20)
            frozen(model, x)
            ptac.optimize(other)
            with torch.no_grad():
                other(x)
            assert kinds(model) == ["conv"]
            for _ in range(3):
                y = torch.randn_like(x)
                ours = by_plan(model, partial(model, y))
                assert torch.equal(ours, by_plan(other, partial(other, y)))
            with torch.no_grad(), ptac.disabled():
                close(ours, twin(model)(y))


@pytest.mark.parametrize(
    ("algorithm", "kernel"), [("winograd_2x2", 3), ("winograd_4x2", 3), ("packed", 1)]
)
def test_weights_are_laid_out_once(algorithm: str, kernel: int) -> None:
    """Seen by what a change of them does not do."""
    for row in runnable(algorithm):
        model, x = block(kernel=kernel), torch.randn(2, 16, 20, 20)
        with pinned(row):
            frozen(model, x)
            before = by_plan(model, partial(model, x))
            with torch.no_grad():
                model[0].weight.mul_(3)
            assert torch.equal(by_plan(model, partial(model, x)), before)


class Conv1D(nn.Module):
    """A layer with its weight the other way round, as GPT-2 has them."""

    def __init__(self, terms: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(terms, columns) / terms**0.5)
        self.bias = nn.Parameter(torch.randn(columns))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x, self.weight)


@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize(
    ("rows", "terms", "columns"),
    [(1, 7, 5), (5, 64, 33), (64, 300, 96), (200, 48, 20), (700, 520, 130)],
)
@pytest.mark.parametrize("kind", [nn.Linear, Conv1D])
def test_panels_of_layers_are_kept(
    kind: type[Any], rows: int, terms: int, columns: int, n_threads: int
) -> None:
    """The same bits as without, and weights are read once."""
    before, layer = torch.get_num_threads(), kind(terms, columns)
    torch.set_num_threads(n_threads)
    try:
        for row in runnable("packed", "linear_act"):
            model = nn.Sequential(layer, nn.ReLU())
            other = twin(model)
            with pinned(row, "linear_act"):
                frozen(model, torch.randn(rows, terms))
                ptac.optimize(other)
                with torch.no_grad():
                    other(torch.randn(rows, terms))
                assert kinds(model) == ["linear"]
                for _ in range(2):
                    x = torch.randn(rows, terms)
                    ours = by_plan(model, partial(model, x))
                    assert torch.equal(ours, by_plan(other, partial(other, x)))
                with torch.no_grad():
                    layer.weight.neg_()
                assert torch.equal(by_plan(model, partial(model, x)), ours)
    finally:
        torch.set_num_threads(before)


def test_norms_are_folded_once() -> None:
    (row,) = runnable("implicit")[:1]
    model, x = block(), torch.randn(2, 16, 20, 20)
    with pinned(row):
        frozen(model, x)
        before = by_plan(model, partial(model, x))
        model[1].running_mean.add_(1)
        assert torch.equal(by_plan(model, partial(model, x)), before)


def test_optimizing_again_reads_weights_again() -> None:
    model, x = block(), torch.randn(2, 16, 20, 20)
    frozen(model, x)
    before = by_plan(model, partial(model, x))
    with torch.no_grad():
        model[0].weight.mul_(2)
        model[0].bias.mul_(2)
    frozen(model, x)
    after = by_plan(model, partial(model, x))
    assert not torch.equal(before, after)
    with torch.no_grad(), ptac.disabled():
        close(after, twin(model)(x))


def test_parametrizations_are_computed_once() -> None:
    torch.manual_seed(0)
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(12, 8))
    model, other, x = nn.Sequential(layer), None, torch.randn(5, 12)
    other = twin(model)
    ptac.optimize(other)
    frozen(model, x)
    with torch.no_grad():
        other(x)
    assert len(kinds(model)) == 1 < len(kinds(other))
    close(by_plan(model, partial(model, x)), by_plan(other, partial(other, x)))


def test_other_sizes_and_threads_have_layouts_of_their_own() -> None:
    model = block()
    ptac.optimize(model, freeze=True)
    n_threads = torch.get_num_threads()
    try:
        for n in (1, 2):
            torch.set_num_threads(n)
            for size in (9, 20):
                x = torch.randn(3, 16, size, size)
                with torch.no_grad():
                    for _ in range(3):
                        ours = model(x)
                    with ptac.disabled():
                        close(ours, twin(model)(x))
    finally:
        torch.set_num_threads(n_threads)
    assert counts(model)[0] == 4


def test_training_mode_runs_eagerly_and_learns() -> None:
    model, x = block(), torch.randn(2, 16, 20, 20)
    frozen(model, x)
    planned = counts(model)[1]
    model.train()
    model(x).sum().backward()
    assert model[0].weight.grad is not None
    assert counts(model)[1] == planned


class Shows(nn.Module):
    """Gives one of its own parameters back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """And what is made of it alone."""
        return x * self.weight, self.weight, self.weight * 2


def test_results_that_are_constants_are_new_tensors() -> None:
    model, x = Shows().eval(), torch.randn(3, 4)
    ptac.optimize(model, freeze=True, on_refusal="ignore")
    with torch.no_grad():
        results = [model(x) for _ in range(3)]
    for product, weight, double in results:
        assert torch.equal(product, x * model.weight)
        assert torch.equal(weight, model.weight)
        assert torch.equal(double, model.weight * 2)
    assert results[1][2].data_ptr() != results[2][2].data_ptr()


def test_steps_that_train_are_refused() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @ptac.optimize(freeze=True, on_refusal="raise")
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    with pytest.raises(ptac.graph.CannotPlan, match="cannot be frozen"):
        step(torch.randn(3, 4))


def test_a_frozen_function_is_planned() -> None:
    model = block()

    @ptac.optimize(freeze=True)
    def twice(x: Tensor) -> Tensor:
        return model(x) * 2

    x = torch.randn(2, 16, 20, 20)
    with torch.no_grad():
        for _ in range(3):
            ours = twice(x)
    assert counts(twice)[1] == 2
    assert not reasons(twice)
    with torch.no_grad(), ptac.disabled():
        close(ours, twin(model)(x) * 2)
