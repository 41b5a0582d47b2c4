"""``nn.Embedding``: its call, with and without gradients."""

from __future__ import annotations

import copy

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

OP = "index_select"
OPS = (OP, "embedding_backward")


def table(n: int = 30, width: int = 12, **options: object) -> nn.Embedding:
    torch.manual_seed(n)
    return nn.Embedding(n, width, **options)


def indices(*sizes: int, dtype: torch.dtype = torch.int64) -> Tensor:
    torch.manual_seed(len(sizes))
    return torch.randint(0, 30, sizes, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("row", switching.runnable_rows(OP))
@torch.no_grad()
def test_lookups_have_stocks_bits(row: str, dtype: torch.dtype) -> None:
    net, wide = table(), indices(9, 4, dtype=dtype)
    ways = [wide[0], wide[:, 1], wide, wide[2, 3], wide[None], wide[:, :1], wide[:1, 0]]
    turned = [wide.t(), wide[:, ::2], wide[:, 1].expand(3, 9)]
    with switching.accelerated(OP, row=row):
        for at in ways + turned:
            with ptac.disabled():
                stock = net(at)
            hits = switching.hits(OP)
            contract.exactly(net(at), stock)
            assert hits.accelerated == 1, at.stride()
            assert not hits.forwarded


def trained(net: nn.Module, at: Tensor) -> list[Tensor]:
    net.zero_grad()
    y = net(at)
    (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
    return [y.detach(), *[p.grad.clone() for p in net.parameters()]]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"padding_idx": 3},
        {"padding_idx": -1},
        {"max_norm": 0.5},
        {"scale_grad_by_freq": True},
        {"dtype": torch.float64},
    ],
)
def test_training_and_options(options: dict[str, object]) -> None:
    at = indices(40, 3)
    stock = trained(table(**options), at)
    with torch.no_grad():
        looked_up = table(**options)(at)
    with switching.accelerated(*OPS):
        contract.exactly(trained(table(**options), at), stock)
        with torch.no_grad():
            contract.exactly(table(**options)(at), looked_up)


def test_errors_are_stocks() -> None:
    net = table()
    calls = [
        lambda: net(torch.tensor([30])),
        lambda: net(torch.tensor([-1])),
        lambda: net(torch.tensor([1.0])),
        lambda: net([1, 2]),
        lambda: net(indices(3)[:0]),
        lambda: net(indices(3).bool()),
    ]
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            for number, call in enumerate(calls):
                stock = contract.said(call)
                with switching.accelerated(OP):
                    contract.exactly(contract.said(call), stock, f"call {number}")


def test_what_others_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who replaces torch's functions, weights or forward is asked as ever."""
    net, at = table(), indices(7)
    stock = net(at).detach()
    with switching.accelerated(OP), torch.no_grad():
        seen = switching.count_calls(monkeypatch, F, "embedding")
        contract.exactly(net(at), stock)
        assert len(seen) == 1
        monkeypatch.undo()
        net.weight.data = net.weight.data * 2
        contract.exactly(net(at), 2 * stock)
        net.forward = lambda at: at
        assert net(at) is at
        del net.forward
        del net.weight
        net.weight = stock
        contract.exactly(net(torch.arange(7)), stock)
    assert "pai_torchacc" not in nn.Embedding.forward.__globals__["__name__"]


@torch.no_grad()
def test_hooks_transforms_autocast_threads_and_toggling() -> None:
    net, at, seen = table(), indices(40), []
    stock = net(at)
    net.register_forward_hook(lambda *args: seen.append(args))
    with switching.accelerated(OP):
        contract.exactly(copy.deepcopy(net)(at), stock)
        assert len(seen) == 1
        contract.exactly(torch.func.vmap(net)(at[:, None])[:, 0], stock)
        with torch.autocast("cpu", torch.bfloat16):
            contract.exactly(net(at), stock)
        with ptac.disabled():
            contract.exactly(net(at), stock)
        results = switching.in_threads(lambda: net(at).detach())
    for y in results():
        contract.exactly(y, stock)


class Model(nn.Module):
    """Both kinds of lookups."""

    def __init__(self) -> None:
        super().__init__()
        self.rows, self.bags = table(), nn.EmbeddingBag(30, 12, mode="sum")

    def forward(self, at: Tensor) -> Tensor:
        """Sums, twice."""
        return self.rows(at).sum(1) + self.bags(at)


@torch.no_grad()
@pytest.mark.filterwarnings("ignore")
def test_compilers_see_through() -> None:
    model, at = Model(), indices(9, 4)
    stock = model(at)
    with switching.accelerated():
        found = [
            torch.jit.script(model)(at),
            torch.jit.trace(model, (at,))(at),
            torch.export.export(model, (at,)).module()(at),
            torch.fx.symbolic_trace(model)(at),
        ]
    for y in found:
        torch.testing.assert_close(y, stock)
