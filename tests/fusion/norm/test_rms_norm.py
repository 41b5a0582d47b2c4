"""RMSNorm and its gradient on the CPU."""

from __future__ import annotations

import copy
from collections.abc import Callable

import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac

OPS = ("rms_norm", "rms_norm_backward")

rows = pytest.mark.parametrize("row", switching.runnable_rows("rms_norm"))


def both(
    shape: tuple[int, ...], n_last: int, affine: bool, away: float
) -> contract.Case:
    """The norm and the gradients of all that it is given."""
    normalized = shape[len(shape) - n_last :]

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = (contract.draw(*shape, dtype=dtype) + away).requires_grad_()
        given = {"x": x}
        if affine:
            given["weight"] = contract.draw(*normalized, dtype=dtype).requires_grad_()
        y = F.rms_norm(x, normalized, given.get("weight"), 1e-6)
        grads = torch.autograd.grad(
            y, list(given.values()), contract.draw(*shape, dtype=dtype)
        )
        return {"y": y, **dict(zip(given, grads, strict=True))}

    return case


@pytest.mark.parametrize(
    ("shape", "n_last", "away"),
    [
        ((5, 7), 1, 0),
        ((300, 64), 1, 0),
        ((4, 25, 100), 1, 3),
        ((2, 3, 5, 41), 2, 0),
        ((40, 1500), 1, 0),
        ((33,), 1, 0),
    ],
)
@pytest.mark.parametrize("affine", [True, False])
@rows
def test_rms_norm_is_close(
    row: str, affine: bool, shape: tuple[int, ...], n_last: int, away: float
) -> None:
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(both(shape, n_last, affine, away))
        assert all(h.accelerated for h in hits)


def close(ours: list[Tensor], stock: list[Tensor]) -> None:
    assert len(ours) == len(stock)
    for a, b in zip(ours, stock, strict=True):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5, equal_nan=True)


@rows
def test_parts_of_gradients(row: str) -> None:
    """Those that nobody asks for are not there; without any there is no node."""
    x, weight, grad = torch.randn(6, 5, 40), torch.rand(40), torch.randn(6, 5, 40)

    def run() -> list[Tensor]:
        found = []
        for wants in ((True, True), (True, False), (False, True), (False, False)):
            pair = [
                t.clone().requires_grad_(w)
                for t, w in zip((x, weight), wants, strict=True)
            ]
            y = F.rms_norm(pair[0], [40], pair[1])
            found.append(y.detach())
            assert y.requires_grad == any(wants)
            if y.requires_grad:
                y.backward(grad)
            assert [t.grad is not None for t in pair] == list(wants)
            found += [t.grad for t in pair if t.grad is not None]
        return found

    stock = run()
    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        close(run(), stock)
        assert [h.accelerated for h in hits] == [4, 3]


@rows
def test_what_is_not_finite(row: str) -> None:
    """Stays in its row."""
    x = torch.randn(6, 70)
    x[1, 3], x[2, 4], x[3, 5], x[4] = float("nan"), float("inf"), -float("inf"), 0.0

    def run() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = F.rms_norm(leaf, (70,))
        return [y.detach(), *torch.autograd.grad(y, leaf, torch.ones(6, 70))]

    stock = run()
    with switching.accelerated(*OPS, row=row):
        ours = run()
    close(ours[:1], stock[:1])
    finite = [0, 5]
    close([ours[1][finite]], [stock[1][finite]])
    assert ours[1][1].isnan().all()


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x,
    lambda x: x[1:],
    lambda x: x.to(memory_format=torch.channels_last),
    lambda x: x.transpose(0, 1),
    lambda x: x[:, :, ::2],
    lambda x: x[:, :, :1].expand(x.shape),
    lambda x: x[:0],
    lambda x: x.double(),
    lambda x: x.bfloat16(),
]


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
def test_layouts_and_dtypes(number: int) -> None:
    x = LAYOUTS[number](torch.randn(3, 6, 20, 20))
    weight = torch.rand(20).to(x.dtype)

    def run() -> list[Tensor]:
        leaf = x.detach().requires_grad_()
        y = F.rms_norm(leaf, (20,), weight)
        given = torch.ones(()).to(x.dtype).expand(y.shape)
        return [y.detach(), *torch.autograd.grad(y, leaf, given)]

    stock = run()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        close(run(), stock)
        assert [h.accelerated for h in hits] == [number < 2] * 2


def test_what_is_stocks() -> None:
    """Counted, with stock's results and errors."""
    x, wide, double = torch.randn(4, 8), torch.rand(16)[::2], torch.rand(8).double()
    calls: list[Callable[[], object]] = [
        lambda: F.rms_norm(x, (7,)),
        lambda: F.rms_norm(x, ()),
        lambda: F.rms_norm(x, (4, 4, 8)),
        lambda: F.rms_norm(x, (2**70,)),
        lambda: F.rms_norm(x, (8,), torch.rand(7)),
        lambda: F.rms_norm(x, (8,), double),
        lambda: F.rms_norm(x, (8,), wide),
        lambda: torch.rms_norm(x, (8,), None, 1),
        lambda: torch.rms_norm([1.0], (8,)),
        lambda: torch.rms_norm(x, 8),
        lambda: torch.rms_norm(x.to_sparse(), (8,)),
    ]
    for number, call in enumerate(calls):
        stock = contract.said(call)
        with switching.accelerated(*OPS):
            hits = switching.hits("rms_norm")
            contract.exactly(contract.said(call), stock, f"call {number}")
            assert hits.accelerated == 0, number
            assert sum(hits.forwarded.values()) == 1, (number, hits)


def test_shadow_checks() -> None:
    leaf, weight = torch.randn(9, 33).requires_grad_(), torch.rand(33)

    def run() -> list[Tensor]:
        y = F.rms_norm(leaf, (33,), weight)
        found = [*torch.autograd.grad(y.square().sum(), leaf), y.detach()]
        with torch.no_grad():
            return [*found, F.rms_norm(leaf, (33,))]

    stock = run()
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in OPS]
        close(run(), stock)
        assert [h.accelerated for h in hits] == [2, 1]
        assert not any(h.failed for h in hits)


def test_derivatives_and_transforms() -> None:
    x, weight = torch.randn(7, 12), torch.rand(12)

    def value(x: Tensor, w: Tensor) -> Tensor:
        return F.rms_norm(x, (12,), w).pow(3).sum()

    def all_of_them() -> list[Tensor]:
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        grads = torch.autograd.grad(value(*leaves), leaves, create_graph=True)
        found = [*grads, *torch.autograd.grad(sum(g.sum() for g in grads), leaves)]
        each = torch.func.vmap(torch.func.grad(value), (0, None))(x, weight)
        ones = torch.ones_like(x)
        tangent = torch.func.jvp(lambda x: value(x, weight), (x,), (ones,))[1]
        return [t.detach() for t in (*found, each, tangent)]

    stock = all_of_them()
    with switching.accelerated(*OPS):
        hits = switching.hits("rms_norm")
        for a, b in zip(all_of_them(), stock, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert hits.accelerated == 1
        assert hits.forwarded
        wide = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradgradcheck(lambda x: F.rms_norm(x, (5,)), wide)


def test_saved_tensors_are_guarded() -> None:
    x, weight = torch.randn(4, 8), torch.rand(8, requires_grad=True)
    with switching.accelerated(*OPS):
        hits = switching.hits("rms_norm")
        y = F.rms_norm(x, (8,), weight)
        assert "MulBackward0" in type(y.grad_fn).__name__
        x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            F.rms_norm(x, (8,), weight).sum().backward()
        assert hits.accelerated == 1
        assert hits.forwarded == {"hooks": 1}


def trained(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_modules_copies_autocast_hooks_and_toggling() -> None:
    model = nn.Sequential(nn.Linear(40, 40), nn.RMSNorm(40), nn.RMSNorm(40, 1e-4))
    x, seen = torch.randn(70, 40), []
    model[1].register_full_backward_hook(lambda *grads: seen.append(grads))
    stock = trained(copy.deepcopy(model), x)
    with torch.autocast("cpu", torch.bfloat16):
        stock_cast = model(x)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        for a, b in zip(trained(copy.deepcopy(model), x), stock, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        assert [h.accelerated for h in hits] == [2, 2]
        assert seen
        with torch.autocast("cpu", torch.bfloat16):
            contract.exactly(model(x), stock_cast)
        with ptac.disabled():
            contract.exactly(trained(copy.deepcopy(model), x), stock)
        y = model(x).square().sum()
        assert hits[0].accelerated == 4
    y.backward()
    assert hits[1].accelerated == 2
    for p, b in zip(model.parameters(), stock, strict=True):
        torch.testing.assert_close(p.grad, b, rtol=1e-4, atol=1e-4)
    contract.exactly(trained(copy.deepcopy(model), x), stock)
    assert torch.rms_norm is torch._C._VariableFunctions.rms_norm


def test_threads() -> None:
    """They do not change bits, neither torch's nor the program's."""
    model, x = nn.RMSNorm(96), torch.randn(900, 96)
    with switching.accelerated(*OPS):
        first = trained(copy.deepcopy(model), x)
        before = torch.get_num_threads()
        torch.set_num_threads(2 if before == 1 else 1)
        try:
            contract.exactly(trained(copy.deepcopy(model), x), first)
        finally:
            torch.set_num_threads(before)
        results = switching.in_threads(
            lambda: trained(copy.deepcopy(model), x), times=1
        )
        found = results()
    for grads in found:
        contract.exactly(grads, first)
