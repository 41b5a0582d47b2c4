"""Operators with a Scalar, whose kernel in the dispatcher gives way to ours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pai_torchacc import _C

OP = "addmm"
ROWS = [row for row in switching.runnable_rows(OP) if not row.startswith("stream")]
rows = pytest.mark.parametrize("row", ROWS)


@pytest.fixture(autouse=True)
def is_known() -> None:
    """On x86-64 all releases of torch so far can be read."""
    with switching.accelerated(OP):
        assert OP in _C.override_installed()


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(20), torch.randn(18, 33), torch.randn(20, 33).t()


@lru_cache
def layer(size: tuple[int, int, int]) -> contract.Case:
    m, k, n = size

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x, w, b = (contract.draw(*s, dtype=dtype) for s in ((m, k), (n, k), (n,)))
        wanted = [t.requires_grad_() for t in (x, w, b)]
        y = F.linear(*wanted)
        found = torch.autograd.grad(y, wanted, contract.draw(m, n, dtype=dtype))
        return {"y": y, "x": found[0], "w": found[1], "b": found[2]}

    return case


@pytest.mark.parametrize("size", [(1, 300, 40), (7, 1100, 33), (30, 64, 100)], ids=str)
@rows
def test_contract(row: str, size: tuple[int, int, int]) -> None:
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        contract.hold(layer(size))
        assert hits.accelerated > 0 or (row.startswith("turned") and size[0] < 16)


Call = Callable[[Tensor, Tensor, Tensor], Any]

SERVED: dict[str, Call] = {
    "function": torch.addmm,
    "method": lambda b, x, w: b.addmm(x, w),
    "ones": lambda b, x, w: torch.addmm(b, x, w, beta=1.0, alpha=1),
    "linear": lambda b, x, w: F.linear(x, w.t(), b),
    "three dimensions": lambda b, x, w: F.linear(x.view(3, 6, 33), w.t(), b),
    "module": lambda b, x, w: _module(b, w)(x).detach(),
}
STOCKS: dict[str, tuple[Call, str]] = {
    "beta": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5), "argument"),
    "alpha": (lambda b, x, w: torch.addmm(b, x, w, alpha=-2), "argument"),
    "no beta": (lambda b, x, w: torch.addmm(b, x, w, beta=0), "argument"),
    "scalar tensor": (
        lambda b, x, w: torch.addmm(b, x, w, alpha=torch.tensor(2.0)),
        "argument",
    ),
    "sum of matrices": (
        lambda b, x, w: torch.addmm(b.expand(18, 20), x, w),
        "argument",
    ),
    "one for all": (lambda b, x, w: torch.addmm(b[:1], x, w), "argument"),
    "bias with gaps": (
        lambda b, x, w: torch.addmm(b.repeat(2)[::2], x, w),
        "layout",
    ),
    "expanded bias": (
        lambda b, x, w: torch.addmm(b[:1].expand(20), x, w),
        "layout",
    ),
    "double": (lambda b, x, w: torch.addmm(*(t.double() for t in (b, x, w))), "dtype"),
    "no rows": (lambda b, x, w: torch.addmm(b, x[:0], w), "empty"),
    "no terms": (lambda b, x, w: torch.addmm(b, x[:, :0], w[:0]), "empty"),
}


def _module(b: Tensor, w: Tensor) -> nn.Linear:
    made = nn.Linear(33, 20)
    made.load_state_dict({"weight": w.t(), "bias": b})
    return made


@pytest.mark.parametrize("name", SERVED)
@rows
def test_served(row: str, name: str) -> None:
    given = tensors()
    stock = SERVED[name](*given)
    with switching.accelerated(OP, row=row):
        hits = switching.hits(OP)
        ours = SERVED[name](*given)
        assert hits.accelerated == 1
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", STOCKS)
def test_left_to_stock(name: str) -> None:
    call, reason = STOCKS[name]
    given = tensors()
    stock = call(*given)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert torch.equal(call(*given), stock)
        assert hits.forwarded == {reason: 1}


def scripted(b: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(b, x, w)


def test_boxed_calls_stay_torchs() -> None:
    given = tensors()
    stock = torch.addmm(*given)
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        assert torch.equal(torch.ops.aten.addmm(*given), stock)
        assert torch.equal(torch.jit.script(scripted)(*given), stock)
        assert hits.forwarded == {}


@pytest.mark.parametrize(
    "change",
    [
        {"beta": 1j},
        {"alpha": 2j},
        {"mat1": torch.ones(9, 4)},
        {"self": torch.ones(7)},
    ],
    ids=str,
)
def test_errors_are_stocks(change: dict[str, Any]) -> None:
    b, x, w = tensors()
    options = {"self": b, "mat1": x, "mat2": w} | change
    with pytest.raises(RuntimeError) as stock:
        torch.addmm(
            options.pop("self"), *[options.pop(n) for n in ("mat1", "mat2")], **options
        )
    options = {"self": b, "mat1": x, "mat2": w} | change
    with switching.accelerated(OP), pytest.raises(RuntimeError) as ours:
        torch.addmm(
            options.pop("self"), *[options.pop(n) for n in ("mat1", "mat2")], **options
        )
    assert str(ours.value) == str(stock.value)


def test_autograd_is_torchs() -> None:
    b, x, w = (t.requires_grad_() for t in tensors())

    def second() -> tuple[Tensor, ...]:
        y = torch.addmm(b, x, w)
        assert y.grad_fn is not None
        assert y.grad_fn.name() == "AddmmBackward0"
        (g,) = torch.autograd.grad(y.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(g.square().sum(), (b, x, w))

    stock = second()
    with switching.accelerated(OP):
        hits = switching.hits(OP)
        ours = second()
        assert hits.accelerated == 1
        mapped = torch.vmap(lambda row: torch.addmm(b, row, w))(x.view(3, 6, 33))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.addmm(b, x, w).dtype is torch.bfloat16
        assert torch.addmm(*(t.to("meta") for t in (b, x, w))).is_meta
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        mapped.view(18, 20), torch.addmm(b, x, w), rtol=1e-5, atol=1e-5
    )


def kernels() -> Iterator[str]:
    for line in torch._C._dispatch_dump("aten::addmm").splitlines():
        if line.startswith("CPU:"):
            yield line


def test_torchs_table_says_that_nothing_has_changed() -> None:
    before = list(kernels())
    with switching.accelerated(OP):
        assert list(kernels()) == before
    assert list(kernels()) == before


def test_whoever_registers_afterwards_stays() -> None:
    """Torch then makes its table anew, without us; switching off leaves it alone."""
    said = switching.python(
        """
import torch
import pai_torchacc as ptac
from pai_torchacc import _C

ptac.enable("operator_fusion")
_C.pin("addmm", _C.preferred_row("addmm"))
given = torch.ones(3), torch.ones(2, 3), torch.ones(3, 3)
torch.addmm(*given)
library = torch.library.Library("aten", "IMPL")
library.impl("addmm", lambda *args, **options: args[0].new_full((1,), 7.0), "CPU")
print(torch.addmm(*given).item(), _C.counters("addmm")[0])
ptac.disable()
print(torch.addmm(*given).item(), _C.counters("addmm")[0])
library._destroy()
print(torch.addmm(*given).sum().item(), _C.counters("addmm")[0])
"""
    )
    assert said.splitlines() == ["7.0 1", "7.0 1", "24.0 1"]


def test_toggling_while_in_use() -> None:
    b, x, w = tensors()
    stock, found = torch.addmm(b, x, w), []
    done = threading.Event()

    def work() -> None:
        while not done.is_set():
            found.append((torch.addmm(b, x, w) - stock).abs().max())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with switching.accelerated(OP):
            torch.addmm(b, x, w)
    done.set()
    for thread in threads:
        thread.join()
    assert len(found) > 20
    assert max(found) < 1e-4
    assert torch.equal(torch.addmm(b, x, w), stock)
