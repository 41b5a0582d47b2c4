"""nn.LSTM and nn.GRU of packed sequences: numbers, gradients, programs."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import contract
import internals
import pytest
import switching
import torch
from recurring import CLASSES, OPS, Result, each, outputs, rows
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence

from pai_torchacc import _C

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


def module_of(name: str, **options: Any) -> nn.RNNBase:
    torch.manual_seed(3)
    return CLASSES[name](5, 9, **options)


def numbers(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(1))


LENGTHS = [4, 3, 3, 2, 1, 1]
X = numbers(6, 4, 5)
SEQUENCE = packed(LENGTHS, X)


def results(found: Any) -> Result:
    y, states = found
    return outputs((y.data, states))


def trained(module: nn.RNNBase, x: Tensor | None = None) -> Result:
    """Outputs, and gradients of x and parameters by all of them."""
    x = (X if x is None else x).detach().requires_grad_()
    found = results(module(packed(LENGTHS, x)))
    loss = sum((t * t.cos()).sum() for t in found.values())
    wanted = {"x": x} | dict(module.named_parameters())
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return found | dict(zip(wanted, grads, strict=True))


@pytest.mark.parametrize("what", VARIANTS)
@each
@rows
def test_numbers(row: str, name: str, what: str) -> None:
    lengths, (n_in, n_hidden), options = VARIANTS[what]
    n_parts = options.get("num_layers", 1) * (1 + options.get("bidirectional", False))

    def case(dtype: torch.dtype) -> Result:
        module = CLASSES[name](n_in, n_hidden, **options).to(dtype)
        x = contract.draw(len(lengths), max(lengths), n_in, dtype=dtype)
        x.requires_grad_()
        hx = [
            contract.draw(n_parts, len(lengths), n_hidden, dtype=dtype).requires_grad_()
            for _ in range(1 + (name == "lstm"))
        ]
        sequence = packed(lengths, x)
        found = results(module(sequence, tuple(hx) if name == "lstm" else hx[0]))
        loss = sum((t * t.cos()).sum() for t in found.values())
        wanted = {"x": x} | {f"hx {i}": t for i, t in enumerate(hx)}
        wanted |= dict(module.named_parameters())
        grads = torch.autograd.grad(loss, list(wanted.values()))
        with torch.no_grad():
            plain = results(module(sequence))
        found |= dict(zip(wanted, grads, strict=True))
        return found | {f"without gradient {k}": t for k, t in plain.items()}

    with switching.accelerated(*OPS, row=row):
        forward, backward = (
            switching.hits(f"{name}{end}") for end in ("", "_backward")
        )
        contract.hold(case)
        assert forward.accelerated == 2 * backward.accelerated > 0
        assert not forward.failed
        assert backward.accelerated % n_parts == 0
        assert not backward.forwarded


@each
def test_of_sequences_that_have_numbers_of_no_gradient(name: str) -> None:
    module = module_of(name)
    sequence = pack_sequence([numbers(4, 5), numbers(2, 5)])

    def run() -> list[Tensor]:
        y, _ = module(sequence)
        weights = [module.weight_hh_l0, module.bias_hh_l0]
        return [y.data, *torch.autograd.grad(y.data.sum(), weights)]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 1


@each
def test_numbers_that_are_not_finite(name: str) -> None:
    module, x = module_of(name), X.clone()
    for row, value in enumerate([float("nan"), float("inf"), -float("inf")]):
        x[row, 1, 2] = value

    def run() -> Result:
        with torch.no_grad():
            return results(module(packed(LENGTHS, x)))

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock, equal_nan=True)


@each
def test_second_derivatives(name: str) -> None:
    module = module_of(name, bidirectional=True)
    x = X.clone().requires_grad_()

    def run() -> list[Tensor]:
        y = module(packed(LENGTHS, x))[0].data
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), [x, *module.parameters()])]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        torch.testing.assert_close(run(), stock)
        assert hits.accelerated == 2


@each
def test_dropout_between_layers_draws_stocks_numbers(name: str) -> None:
    module = module_of(name, num_layers=3, dropout=0.4)

    def run() -> list[Tensor]:
        torch.manual_seed(5)
        return [*trained(module).values(), torch.rand(2)]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@each
def test_results_may_be_changed_in_place(name: str) -> None:
    module = module_of(name)

    def run() -> Any:
        y, _ = module(SEQUENCE)
        torch.relu_(y.data)
        return torch.autograd.grad(y.data.sum(), list(module.parameters()))

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


@pytest.mark.parametrize("which", ["weight_ih_l0", "weight_hh_l0", "bias_hh_l0"])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("of_x", [True, False])
@each
def test_parameters_that_change_before_backward(
    name: str, of_x: bool, is_packed: bool, which: str
) -> None:
    """An error, or the gradient as it was, where stock has the one or the other."""

    def run() -> Any:
        module = module_of(name)
        x = X.clone().requires_grad_(of_x)
        y, _ = module(packed(LENGTHS, x) if is_packed else x)
        y = y.data if is_packed else y
        with torch.no_grad():
            getattr(module, which).mul_(3)
        wanted = [x, *module.parameters()][not of_x :]
        return torch.autograd.grad(y.pow(2).sum(), wanted)

    stock = contract.said(run)
    with switching.accelerated(*OPS):
        ours = contract.said(run)
    if isinstance(stock, str):
        assert "modified by an inplace operation" in stock
        assert "modified by an inplace operation" in ours
    else:
        torch.testing.assert_close(ours, stock)


@each
def test_biases_that_change_between_derivatives(name: str) -> None:
    module, x = module_of(name), X.clone().requires_grad_()
    start = {k: v.clone() for k, v in module.state_dict().items()}

    def run() -> list[Tensor]:
        module.load_state_dict(start)
        y = module(packed(LENGTHS, x))[0].data
        with torch.no_grad():
            module.bias_hh_l0.add_(1)
        (g,) = torch.autograd.grad(y.pow(2).sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.sum(), [x, *module.parameters()])]

    stock = run()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(run(), stock)


def autocasting(name: str) -> Any:
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        return module_of(name)(SEQUENCE)[0].data


def functional(name: str) -> Any:
    module = module_of(name).requires_grad_(False)

    def loss(data: Tensor) -> Tensor:
        total: Tensor = module(SEQUENCE._replace(data=data))[0].data.sum()
        return total

    return torch.func.grad(loss)(SEQUENCE.data)


def hooked(name: str) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        module = module_of(name)
        return torch.autograd.grad(module(SEQUENCE)[0].data.sum(), module.weight_hh_l0)


def double(name: str) -> Any:
    return module_of(name).double()(SEQUENCE.to(torch.double))[0].data


FORWARDED: dict[str, tuple[str, Callable[[str], Any]]] = {
    "double": ("dtype", double),
    "autocast": ("mode or transform active", autocasting),
    "functorch": ("tensor subclass", functional),
    "hooks": ("hooks", hooked),
}


@pytest.mark.parametrize("what", FORWARDED)
@each
def test_what_stock_does(name: str, what: str) -> None:
    reason, run = FORWARDED[what]
    stock = contract.said(lambda: run(name))
    with switching.accelerated(*OPS):
        hits = switching.hits(name)
        contract.exactly(contract.said(lambda: run(name)), stock)
        assert not hits.accelerated
        assert hits.forwarded == {reason: 1}


@each
def test_mistakes_get_torchs_own_errors(name: str) -> None:
    module = module_of(name)
    function, params = getattr(torch._VF, name), module._flat_weights
    data, sizes = SEQUENCE.data, SEQUENCE.batch_sizes
    rest = (params, True, 1, 0.0, False, False)

    def states(n: int) -> Any:
        zeros = torch.zeros(1, n, 9)
        return (zeros, zeros) if name == "lstm" else zeros

    def call(*args: Any) -> Callable[[], Any]:
        return lambda: getattr(torch._VF, name)(*args)

    calls: list[Callable[[], Any]] = [
        call(data, sizes, states(5), *rest),
        call(data, sizes.flip(0), states(1), *rest),
        call(data, torch.tensor([6, 4, 3, 2]), states(6), *rest),
        call(data, sizes.double(), states(6), *rest),
        call(data, sizes.tolist(), states(6), *rest),
        call(data, sizes, states(6), params[:3], *rest[1:]),
        call(data[:, :3], sizes, states(6), *rest),
        lambda: pack_padded_sequence(X, torch.tensor([4, 2, 2, 1, 1, 0]), True),
    ]
    stock = [contract.said(mistake) for mistake in calls]
    assert all(isinstance(text, str) for text in stock)
    with switching.accelerated(*OPS):
        assert [contract.said(mistake) for mistake in calls] == stock
    assert function is getattr(torch._VF, name)


@each
def test_rows_that_break(name: str) -> None:
    module = module_of(name, bidirectional=True)

    def run() -> list[Tensor]:
        found = [*trained(module).values()]
        with torch.no_grad():
            return [*found, *results(module(SEQUENCE)).values()]

    stock = run()
    try:
        for op in (name, f"{name}_backward"):
            with switching.accelerated(*OPS):
                hits = switching.hits(op)
                internals.inject_failure(op)
                torch.testing.assert_close(run(), stock)
                assert hits.failed == 1
            internals.reset_quarantine()
    finally:
        internals.reset_quarantine()


@each
def test_shadow_checks(name: str) -> None:
    module = module_of(name, num_layers=2, bidirectional=True)

    def run() -> list[Tensor]:
        return [*trained(module).values()]

    stock = run()
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in (name, f"{name}_backward")]
        torch.testing.assert_close(run(), stock)
        assert [h.accelerated for h in hits] == [4, 4]
    assert not [row for _, _, rows in _C.operators() for row in rows if row[3]]


@each
def test_switched_off_between_forward_and_backward(name: str) -> None:
    module = module_of(name, bidirectional=True)
    parameters = list(module.parameters())
    stock = torch.autograd.grad(module(SEQUENCE)[0].data.sum(), parameters)
    with switching.accelerated(*OPS):
        y = module(SEQUENCE)[0].data.sum()
    hits = [switching.hits(op) for op in OPS]
    torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)
    assert not any(h.accelerated for h in hits)
    y = module(SEQUENCE)[0].data.sum()
    with switching.accelerated(*OPS):
        torch.testing.assert_close(torch.autograd.grad(y, parameters), stock)


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
    threads = torch.get_num_threads()
    found = []
    try:
        with switching.accelerated(name):
            for n in (1, 2):
                torch.set_num_threads(n)
                with torch.no_grad():
                    found.append([*results(module(sequence)).values()])
    finally:
        torch.set_num_threads(threads)
    contract.exactly(*found)


def test_threads_that_train() -> None:
    modules = {name: module_of(name) for name in CLASSES}
    stock = {name: [*trained(module).values()] for name, module in modules.items()}
    trouble: list[BaseException] = []

    def train() -> None:
        try:
            for _ in range(20):
                for name, module in modules.items():
                    found = [*trained(module).values()]
                    torch.testing.assert_close(found, stock[name])
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=train) for _ in range(2)]
    with switching.accelerated(*OPS):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not trouble
