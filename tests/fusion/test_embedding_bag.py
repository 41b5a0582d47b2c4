"""Bags of rows of a table: sums, means, largest elements, and their gradients."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import contract
import indexed
import pytest
import switching
import torch
import torch.nn.functional as F
from indexed import floats
from torch import Tensor, nn

import pai_torchacc as ptac

FORWARD = "embedding_bag"
BACKWARDS = ("embedding_bag_backward", "embedding_bag_max_backward")
OPS = (FORWARD, *BACKWARDS)

MODES = ("sum", "mean", "max")
pytestmark = pytest.mark.usefixtures("one_thread")
"""Stock's order of additions is then known."""

ATEN = torch.ops.aten

rows = pytest.mark.parametrize("row", switching.runnable_rows(FORWARD))
integers = pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
modes = pytest.mark.parametrize("mode", MODES)


def indices(n_rows: int, n: int, dtype: torch.dtype = torch.int64) -> Tensor:
    torch.manual_seed(n)
    return torch.randint(0, n_rows, (n,), dtype=dtype)


def bags(n: int, dtype: torch.dtype) -> list[Tensor]:
    """Offsets: of equal bags, with empty ones, one large, a row each."""
    every = torch.arange(0, n, 3, dtype=dtype)
    uneven = torch.tensor([0, 0, n // 4, n // 4, n // 2, n, n], dtype=dtype)
    return [every, uneven, uneven[:1], torch.arange(n, dtype=dtype)]


@pytest.mark.parametrize(
    "sizes", [(7, 1, 5), (40, 17, 60), (90, 64, 700), (30, 150, 90)]
)
@integers
@modes
@rows
def test_forward_has_stocks_bits(
    row: str, mode: str, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    """With all that is saved for the gradient."""
    n_rows, width, n = sizes
    index = indices(n_rows, n, dtype)
    tables = [floats(n_rows, width), floats(n_rows, width + 3)[:, 1 : width + 1]]
    number = MODES.index(mode)
    ways = itertools.product(
        tables,
        bags(n, dtype),
        (-1, int(index[2])),
        (ATEN._embedding_bag, ATEN._embedding_bag_forward_only),
    )
    with switching.accelerated(FORWARD, row=row):
        for table, offsets, padding, call in ways:
            last = bool(offsets[-1] == n)
            args = table, index, offsets, False, number, False, None, last, padding
            with ptac.disabled():
                stock = call(*args)
            hits = switching.hits(FORWARD)
            contract.exactly(call(*args), stock)
            assert hits.accelerated == 1, hits


@pytest.mark.parametrize("mode", ["sum", "mean"])
@torch.no_grad()
def test_modules_without_gradients(mode: str) -> None:
    """Whose call is shorter; torch's functions are asked where somebody sees them."""
    index = indices(40, 60).view(12, 5)
    net = nn.EmbeddingBag(40, 20, mode=mode)
    padded = nn.EmbeddingBag(40, 20, mode=mode, padding_idx=3)
    offsets = torch.tensor([0, 9])
    calls: list[Callable[[], Tensor]] = [
        lambda: net(index),
        lambda: net(index[:1]),
        lambda: net(index[:, ::2]),
        lambda: net(index.int()),
        lambda: net(index.view(-1), offsets),
        lambda: padded(index),
        lambda: copy.deepcopy(net).double()(index),
        lambda: net(index[:, :0]),
        lambda: net(index[:0]),
    ]
    for number, call in enumerate(calls):
        stock = contract.said(call)
        with switching.accelerated(FORWARD):
            hits = switching.hits(FORWARD)
            contract.exactly(contract.said(call), stock, f"call {number}")
            assert hits.accelerated == (number < 6), (number, hits)
    with switching.accelerated(FORWARD):
        hits = switching.hits(FORWARD)
        for wrong in (torch.tensor([[40]]), torch.tensor([[-1]])):
            with pytest.raises(RuntimeError, match="not in the valid range"):
                net(wrong)
        assert hits.accelerated == 0


def trained(
    table: Tensor, index: Tensor, mode: str, padding: int | None = None
) -> list[Tensor]:
    weight = table.clone().requires_grad_()
    y = F.embedding_bag(index, weight, mode=mode, padding_idx=padding)
    grad = torch.linspace(-1, 1, y.numel()).view(y.shape).sin()
    return [y.detach(), *torch.autograd.grad(y, weight, grad)]


@integers
@pytest.mark.parametrize("padding", [None, 0, 5])
@pytest.mark.parametrize("width", [1, 7, 32, 70])
@modes
def test_gradients(
    mode: str, width: int, padding: int | None, dtype: torch.dtype
) -> None:
    index, table = indices(60, 1000, dtype).view(40, 25), floats(60, width)
    index[3] = 5
    stock = trained(table, index, mode, padding)
    op = BACKWARDS[mode == "max"]
    for row in switching.runnable_rows(op):
        with switching.accelerated(op, row=row):
            hits = switching.hits(op)
            contract.exactly(trained(table, index, mode, padding), stock)
            assert hits.accelerated == 1, hits


@modes
def test_sparse_gradients(mode: str) -> None:
    """As stock's: coalesced or not, and with its indices."""
    index, table = indices(30, 60).view(12, 5), torch.randn(30, 8)

    def run() -> list[Tensor]:
        weight = table.clone().requires_grad_()
        y = F.embedding_bag(index, weight, mode=mode, sparse=mode != "max")
        z = F.embedding(index, weight, sparse=mode != "max")
        found = torch.autograd.grad(y.sum() + z.square().sum(), weight)
        grad = found[0]
        if not grad.is_sparse:
            return [y.detach(), grad]
        flat = grad._indices(), grad._values(), torch.tensor(grad.is_coalesced())
        return [y.detach(), *flat]

    stock = run()
    with switching.accelerated():
        contract.exactly(run(), stock)


def test_sparse_training() -> None:
    """SGD and SparseAdam, which write rows alone."""

    def run() -> list[Tensor]:
        torch.manual_seed(1)
        found = []
        for make in (torch.optim.SGD, torch.optim.SparseAdam):
            net = nn.EmbeddingBag(40, 16, mode="sum", sparse=True)
            optimizer = make(net.parameters(), lr=0.1)
            for seed in range(3):
                optimizer.zero_grad()
                net(indices(40, 90 + seed * 9).view(-1, 9)).square().sum().backward()
                optimizer.step()
            found += list(net.state_dict().values())
        return found

    stock = run()
    with switching.accelerated():
        contract.exactly(run(), stock)


@modes
def test_threads_do_not_change_bits(mode: str) -> None:
    index, table = indices(500, 9000).view(-1, 9), torch.randn(500, 33)
    stock = trained(table, index, mode)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        with switching.accelerated(*OPS):
            hits = [switching.hits(FORWARD), switching.hits(BACKWARDS[mode == "max"])]
            contract.exactly(trained(table, index, mode), stock)
            assert [h.accelerated for h in hits] == [1, 1]


def refused() -> list[Callable[[], object]]:
    """Calls that are stock's, among them those that it answers with an error."""
    x, index = floats(6, 4), indices(6, 9)
    offsets = torch.tensor([0, 4])

    def call(**options: object) -> Callable[[], object]:
        given = {"weight": x, "input": index, "offsets": offsets, **options}
        return lambda: F.embedding_bag(**given)

    wrong = [torch.tensor([0, 6, 2]), torch.tensor([1, -1]), torch.tensor([2**40])]
    errors = [
        call(input=at, offsets=offsets[:1], mode=mode)
        for at, mode in itertools.product((*wrong, wrong[0].int()), MODES)
    ]
    return [
        *errors,
        call(offsets=torch.tensor([1, 4])),
        call(offsets=torch.tensor([0, 10])),
        call(offsets=torch.tensor([0, 4, 7]), include_last_offset=True),
        call(offsets=torch.tensor([0, 9, 4, 9])),
        call(offsets=offsets[:0]),
        call(input=index[:0], offsets=offsets[:1]),
        call(input=index.int()),
        call(weight=x.double()),
        call(weight=x.bfloat16()),
        call(weight=x.t()),
        call(weight=torch.randn(6, 2)[:, ::2]),
        call(mode="sum", per_sample_weights=torch.rand(9)),
    ]


def test_what_is_stocks() -> None:
    indexed.hold_refused(OPS, refused())


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "mean", "scale_grad_by_freq": True},
        {"mode": "sum", "per_sample_weights": torch.ones(3, 3)},
    ],
)
def test_other_gradients_are_stocks(options: dict[str, object]) -> None:
    def run() -> Tensor:
        table = floats(6, 4).requires_grad_()
        y = F.embedding_bag(indices(6, 9).view(3, 3), table, **options)
        return torch.autograd.grad(y, table, torch.ones(3, 4))[0]

    stock = run()
    with switching.accelerated(*OPS):
        hits = switching.hits("embedding_bag_backward")
        contract.exactly(run(), stock)
        assert hits.accelerated == 0
        assert hits.forwarded == {"argument": 1}


def test_shadow_checks() -> None:
    table = torch.randn(60, 24)
    with switching.accelerated(*OPS, verify=1):
        for mode, dtype in itertools.product(MODES, (torch.int64, torch.int32)):
            hits = [switching.hits(op) for op in OPS]
            trained(table, indices(60, 100, dtype).view(20, 5), mode)
            assert hits[0].accelerated == (dtype is torch.int64)
            assert sum(h.accelerated for h in hits[1:]) == 1
            assert not any(h.failed for h in hits)


@modes
def test_modules_copies_hooks_autocast_and_toggling(mode: str) -> None:
    model, index = nn.EmbeddingBag(50, 16, mode=mode), indices(50, 200).view(-1, 4)
    seen: list[object] = []
    model.register_full_backward_hook(lambda *grads: seen.append(grads))

    def run(model: nn.Module) -> list[Tensor]:
        model.zero_grad()
        y = model(index)
        y.square().sum().backward()
        assert model.weight.grad is not None
        return [y.detach(), model.weight.grad.clone()]

    def func() -> Tensor:
        loss = torch.func.grad(lambda w: F.embedding_bag(index, w, mode=mode).sum())
        return loss(model.weight.detach())

    stock, stock_func = run(copy.deepcopy(model)), func()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stock_cast = model(index)
    with switching.accelerated(*OPS):
        hits = switching.hits(FORWARD)
        contract.exactly(run(copy.deepcopy(model)), stock)
        contract.exactly(func(), stock_func)
        assert hits.accelerated == 2
        assert seen
        with torch.autocast("cpu", dtype=torch.bfloat16):
            contract.exactly(model(index), stock_cast)
        with ptac.disabled():
            contract.exactly(run(copy.deepcopy(model)), stock)
        results = switching.in_threads(lambda: run(copy.deepcopy(model)), times=1)
        y = model(index)
    found = results()
    y.square().sum().backward()
    contract.exactly(model.weight.grad, stock[1])
    for each in found:
        contract.exactly(each, stock)
