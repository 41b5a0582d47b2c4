"""Plans run recurrent layers by rows, and keep what these make of frozen weights."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
import switching
import torch
from planning import counts, kinds, twin, warm
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import pai_torchacc as ptac

LAYERS: dict[str, Any] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
}
STEP = "recurrent"


class Whole(nn.Module):
    """All outputs of a layer, from states that are given or zeros."""

    def __init__(self, op: str, *sizes: int, **options: Any) -> None:
        super().__init__()
        self.layer = LAYERS[op](*sizes, **options)

    def forward(self, x: Tensor, states: Any = None) -> Any:
        y, last = self.layer(x) if states is None else self.layer(x, states)
        return (y, *last) if isinstance(last, tuple) else (y, last)


@pytest.fixture(autouse=True)
def _same_numbers() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def frozen(module: nn.Module, *args: Any) -> None:
    ptac.optimize(module, freeze=True)
    with torch.no_grad():
        for _ in range(2):
            module(*args)


def assert_same(got: Any, expected: Any) -> None:
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("n_rows", [1, 3, 9])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "num_layers": 3},
    ],
    ids=str,
)
def test_bits_of_eager_calls(op: str, n_rows: int, options: dict[str, Any]) -> None:
    module, x = Whole(op, 20, 35, **options).eval(), torch.randn(6, n_rows, 20)
    x = x.transpose(0, 1).contiguous() if options.get("batch_first") else x
    with torch.no_grad(), switching.accelerated(op):
        eager = module(x)
        for optimize in (warm, frozen):
            planned = twin(module)
            optimize(planned, x)
            assert STEP in kinds(planned)
            hits = switching.Hits(op)
            for _ in range(3):
                assert_same(planned(x), eager)
            parts = options.get("num_layers", 1) * (1 + ("bidirectional" in options))
            assert hits.accelerated == 3 * parts


@pytest.mark.parametrize("op", LAYERS)
def test_one_step_of_few_rows(op: str) -> None:
    """Weights are read as they lie then, and biases alone are kept."""
    module, x = Whole(op, 20, 64).eval(), torch.randn(1, 2, 20)
    with torch.no_grad(), switching.accelerated(op):
        eager = module(x)
        frozen(module, x)
        assert STEP in kinds(module)
        for _ in range(3):
            assert_same(module(x), eager)


def test_states_that_are_given() -> None:
    module, x = Whole("lstm", 20, 32).eval(), torch.randn(6, 2, 20)
    states = torch.randn(1, 2, 32), torch.randn(1, 2, 32)
    others = torch.randn(1, 2, 32), torch.randn(1, 2, 32)
    with torch.no_grad(), switching.accelerated("lstm"):
        eager, after = module(x, states), module(x, others)
        frozen(module, x, states)
        assert STEP in kinds(module)
        assert_same(module(x, states), eager)
        assert_same(module(x, others), after)


def test_a_state_goes_on() -> None:
    """Results live on while later calls run."""
    module, x = Whole("lstm", 16, 32).eval(), torch.randn(4, 3, 16)
    eager, planned = twin(module), module
    with torch.no_grad(), switching.accelerated("lstm"):
        state = torch.zeros(1, 3, 32), torch.zeros(1, 3, 32)
        frozen(planned, x, state)
        expected = state
        for _ in range(5):
            y, *state = planned(x, tuple(state))
            z, *expected = eager(x, tuple(expected))
            assert_same((y, *state), (z, *expected))


def test_weights_that_are_not_frozen_may_change() -> None:
    module, x = Whole("gru", 20, 32).eval(), torch.randn(6, 2, 20)
    with torch.no_grad(), switching.accelerated("gru"):
        warm(module, x)
        assert STEP in kinds(module)
        before = module(x)
        module.layer.weight_hh_l0.mul_(-1)
        module.layer.bias_ih_l0.data.add_(0.5)
        after = module(x)
        assert not torch.equal(before[0], after[0])
        assert_same(after, twin(module)(x))


def test_two_geometries_keep_apart() -> None:
    """Of few rows weights are laid out otherwise than of many."""
    module = Whole("lstm", 20, 32).eval()
    one, many = torch.randn(6, 1, 20), torch.randn(6, 12, 20)
    with torch.no_grad(), switching.accelerated("lstm"):
        eager = module(one), module(many)
        frozen(module, one)
        for _ in range(3):
            module(many)
        for _ in range(2):
            assert_same(module(one), eager[0])
            assert_same(module(many), eager[1])


def test_dropout_between_layers_is_torchs() -> None:
    dropping = Whole("lstm", 8, 16, num_layers=2, dropout=0.5).train()
    x = torch.randn(5, 4, 8)
    with torch.no_grad(), switching.accelerated("lstm"):
        warm(dropping, x)
        assert STEP not in kinds(dropping)


def test_projections_are_planned_by_torch() -> None:
    module, x = Whole("lstm", 8, 16, proj_size=4).eval(), torch.randn(5, 4, 8)
    with torch.no_grad(), switching.accelerated("lstm"):
        eager = module(x)
        warm(module, x)
        assert STEP not in kinds(module)
        assert_same(module(x), eager)


def test_biases_with_gaps_are_planned_by_torch() -> None:
    weights = [torch.randn(64, 8), torch.randn(64, 16)]
    biases = [torch.randn(64, 2)[:, 0], torch.randn(64)]
    x, h, c = torch.randn(5, 4, 8), torch.zeros(1, 4, 16), torch.zeros(1, 4, 16)

    @ptac.optimize
    def run(x: Tensor, h: Tensor, c: Tensor, weights: Any) -> Any:
        return torch._VF.lstm(x, (h, c), weights, True, 1, 0.0, False, False, False)

    with torch.no_grad(), switching.accelerated("lstm"):
        expected = torch._VF.lstm(
            x, (h, c), weights + biases, True, 1, 0.0, False, False, False
        )
        for _ in range(4):
            assert_same(run(x, h, c, weights + biases), expected)
        assert counts(run)[1] > 0
        assert STEP not in kinds(run)


def test_modes_see_no_copies_of_states() -> None:
    module = Whole("lstm", 8, 16, num_layers=2)
    x, states = torch.randn(5, 4, 8), [torch.randn(4, 2, 16).mT for _ in range(2)]
    states = [state.reshape(4, 16, 2).permute(2, 0, 1) for state in states]
    seen: list[list[str]] = []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen[-1].append(str(func))
            return func(*args, **(kwargs or {}))

    for is_on in (False, True):
        seen.append([])
        with torch.no_grad(), ExitStack() as stack:
            if is_on:
                stack.enter_context(switching.accelerated("lstm"))
            with Log():
                module(x, tuple(states))
    assert seen[0] == seen[1]


def test_another_row_does_not_use_what_one_has_kept() -> None:
    module, x = Whole("lstm", 20, 24).eval(), torch.randn(6, 1, 20)
    rows = switching.runnable_rows("lstm")
    with torch.no_grad():
        with switching.accelerated("lstm", row=rows[0]):
            frozen(module, x)
            module(x)
        for row in rows:
            with switching.accelerated("lstm", row=row):
                expected = twin(module)(x)
                for _ in range(3):
                    assert_same(module(x), expected)


def test_panels_are_freed_with_their_plan() -> None:
    """Some 64 MiB at a time, of which none stays."""

    def peak() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    with torch.no_grad(), switching.accelerated("lstm"):
        for i in range(12):
            module, x = Whole("lstm", 512, 1024).eval(), torch.randn(4, 1, 512)
            frozen(module, x)
            assert_same(module(x), twin(module)(x))
            ptac.unoptimize(module)
            if i == 3:
                before = peak()
    assert peak() - before < 100 * 1024  # KiB
