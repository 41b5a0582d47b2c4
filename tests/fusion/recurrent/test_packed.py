"""nn.LSTM and nn.GRU of packed sequences: numbers, gradients, programs."""

from __future__ import annotations

import copy
from typing import Any

import contract
import pytest
import recurring
import switching
import torch
from recurring import (
    CLASSES,
    FORWARDED,
    OPS,
    Result,
    Run,
    by_name,
    derived_twice,
    each,
    module_of,
    numbers,
    outputs,
    put_not_finite,
    rows,
    states_by,
    with_gradients,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

VARIANTS: dict[str, tuple[list[int], tuple[int, int], dict[str, Any]]] = {
    "sorted": ([6, 5, 5, 3, 2, 1, 1], (9, 21), {}),
    "in any order": ([2, 7, 1, 4, 4], (5, 16), {}),
    "many": ([9] * 8 + [7] * 3 + [*range(1, 7)] * 3, (8, 40), {}),
    "one sequence": ([5], (12, 40), {}),
    "two sequences": ([1, 6], (7, 12), {}),
    "all as long": ([4, 4, 4, 4, 4], (3, 8), {}),
    "one step": ([1, 1, 1], (6, 8), {}),
    "no bias": ([4, 3, 1], (8, 17), {"bias": False}),
    "both directions": ([3, 6, 1, 2], (8, 12), {"bidirectional": True}),
    "two layers": ([1, 5, 2, 4], (6, 20), {"num_layers": 2, "bidirectional": True}),
}


def packed(lengths: list[int], x: Tensor) -> PackedSequence:
    lengths_ = torch.tensor(lengths)
    return pack_padded_sequence(x, lengths_, batch_first=True, enforce_sorted=False)


LENGTHS = [4, 3, 3, 2, 1, 1]
X = numbers(6, 4, 5)
SEQUENCE = packed(LENGTHS, X)


def results(found: Any) -> Result:
    y, states = found
    return outputs((y.data, states))


def trained(module: nn.RNNBase) -> Result:
    """Outputs, and gradients of X and parameters by all of them."""
    x = X.clone().requires_grad_()
    return with_gradients(results(module(packed(LENGTHS, x))), module, x)


def y_of(module: nn.RNNBase, data: Tensor) -> Tensor:
    """What a module gives for other numbers of the sequence."""
    y: Tensor = module(SEQUENCE._replace(data=data))[0].data
    return y


@pytest.mark.parametrize("what", VARIANTS)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    lengths, (n_in, n_hidden), options = VARIANTS[what]
    n_parts = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))

    def case(dtype: torch.dtype) -> Result:
        module = CLASSES[name](n_in, n_hidden, **options).to(dtype)

        def draw(*sizes: int) -> Tensor:
            return contract.draw(*sizes, dtype=dtype).requires_grad_()

        x = draw(len(lengths), max(lengths), n_in)
        hx = states_by(name, lambda: draw(n_parts, len(lengths), n_hidden))
        sequence = packed(lengths, x)
        found = with_gradients(results(module(sequence, hx)), module, x, hx)
        with torch.no_grad():
            plain = results(module(sequence))
        return found | {f"without gradient {k}": t for k, t in plain.items()}

    recurring.hold_numbers(name, row, case, n_parts=n_parts)


@each
def test_of_sequences_that_have_numbers_of_no_gradient(name: str) -> None:
    module = module_of(name)
    sequence = pack_sequence([numbers(4, 5), numbers(2, 5)])

    def run() -> list[Tensor]:
        y, _ = module(sequence)
        weights = [module.weight_hh_l0, module.bias_hh_l0]
        return [y.data, *torch.autograd.grad(y.data.sum(), weights)]

    recurring.hold(name, run, forward=1)


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    module, x = module_of(name), X.clone()
    put_not_finite(x[:, 1])

    def run() -> Result:
        with torch.no_grad():
            return results(module(packed(LENGTHS, x)))

    recurring.hold(name, run, equal_nan=True)


@each
def test_second_derivatives(name: str) -> None:
    module = module_of(name, bidirectional=True)
    x = X.clone().requires_grad_()

    def run() -> list[Tensor]:
        y = module(packed(LENGTHS, x))[0].data
        return derived_twice(y.pow(2).sum(), x, module)

    recurring.hold(name, run, forward=2)


@each
def test_dropout_between_layers_draws_stocks_numbers(name: str) -> None:
    module = module_of(name, num_layers=3, dropout=0.4)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        return [*trained(module).values(), torch.rand(2)]

    recurring.hold(name, run)


@each
def test_results_may_be_changed_in_place(name: str) -> None:
    module = module_of(name)

    def run() -> Any:
        y, _ = module(SEQUENCE)
        torch.relu_(y.data)
        return torch.autograd.grad(y.data.sum(), list(module.parameters()))

    recurring.hold(name, run)


@pytest.mark.parametrize("which", ["weight_ih_l0", "weight_hh_l0", "bias_hh_l0"])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("of_x", [True, False])
@each
def test_parameters_that_change_before_backward(
    name: str, of_x: bool, is_packed: bool, which: str
) -> None:
    def run() -> Any:
        module = module_of(name)
        x = X.clone().requires_grad_(of_x)
        y, _ = module(packed(LENGTHS, x) if is_packed else x)
        y = y.data if is_packed else y
        with torch.no_grad():
            getattr(module, which).mul_(3)
        wanted = [x, *module.parameters()][not of_x :]
        return torch.autograd.grad(y.pow(2).sum(), wanted)

    recurring.hold_changed(name, run)


@each
def test_biases_that_change_between_derivatives(name: str) -> None:
    module, x = module_of(name), X.clone().requires_grad_()
    start = {k: v.clone() for k, v in module.state_dict().items()}

    def run() -> list[Tensor]:
        module.load_state_dict(start)
        y = module(packed(LENGTHS, x))[0].data
        with torch.no_grad():
            module.bias_hh_l0.add_(1)
        return derived_twice(y.pow(2).sum(), x, module)

    recurring.hold(name, run)


@pytest.mark.parametrize("what", FORWARDED)
@each
def test_what_stock_does(name: str, what: str) -> None:
    reason, way = FORWARDED[what]
    recurring.hold_forwarded(
        name, lambda: way(module_of(name), y_of, SEQUENCE.data), reason
    )


@each
def test_mistakes_get_torchs_own_errors(name: str) -> None:
    function, params = getattr(torch._VF, name), module_of(name)._flat_weights
    data, sizes = SEQUENCE.data, SEQUENCE.batch_sizes
    rest = (params, True, 1, 0.0, False, False)

    def states(n: int) -> Any:
        return states_by(name, lambda: torch.zeros(1, n, 9))

    def call(*args: Any) -> Run:
        return by_name(name, *args)

    calls = [
        call(data, sizes, states(5), *rest),
        call(data, sizes.flip(0), states(1), *rest),
        call(data, torch.tensor([6, 4, 3, 2]), states(6), *rest),
        call(data, sizes.double(), states(6), *rest),
        call(data, sizes.tolist(), states(6), *rest),
        call(data, sizes, states(6), params[:3], *rest[1:]),
        call(data[:, :3], sizes, states(6), *rest),
        lambda: pack_padded_sequence(X, torch.tensor([4, 2, 2, 1, 1, 0]), True),
    ]
    recurring.hold_errors(name, calls)
    assert function is getattr(torch._VF, name)


@each
def test_rows_that_break(name: str) -> None:
    module = module_of(name, bidirectional=True)

    def run() -> list[Tensor]:
        found = [*trained(module).values()]
        with torch.no_grad():
            return [*found, *results(module(SEQUENCE)).values()]

    recurring.hold_broken_rows(name, run)


@each
def test_shadow_checks(name: str) -> None:
    module = module_of(name, num_layers=2, bidirectional=True)
    recurring.hold_shadow_checks(name, lambda: trained(module), calls=[4, 4])


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    module = module_of(name, bidirectional=True)
    recurring.hold_switched_off(name, module, lambda: y_of(module, SEQUENCE.data))


@each
def test_copies(name: str) -> None:
    module = module_of(name)
    stock = module(SEQUENCE)[0].data.detach()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        again = copy.deepcopy(module)(copy.deepcopy(SEQUENCE))[0].data
        torch.testing.assert_close(again.detach(), stock)
        assert hits.accelerated == 1


@each
def test_the_result_does_not_depend_on_threads(name: str) -> None:
    module = CLASSES[name](20, 64)
    sequence = packed([10, 9, 3] * 10, numbers(30, 10, 20))
    recurring.hold_by_any_threads(name, lambda: results(module(sequence)))


def test_threads_that_train() -> None:
    with switching.accelerated(*OPS):
        recurring.hold_in_threads(trained, 20)
