"""pai_torchacc.ops.add_norm and dropout_add on CUDA."""

from __future__ import annotations

from typing import Any

import emulation
import internals
import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NORMS = ["layer_norm", "rms_norm"]


@pytest.fixture(autouse=True)
def generators(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, ...]:
    both = emulation.Philox(), emulation.Philox()
    monkeypatch.setattr(torch.cuda, "default_generators", both)
    return both


def parameters(n: int, dtype: torch.dtype, norm: str) -> list[Tensor]:
    weights = [torch.randn(n).to(dtype) for _ in range(1 + (norm == "layer_norm"))]
    return [t.cuda().requires_grad_() for t in weights]


def near(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Within a few roundings of the dtype, by the size of what is added up."""
    assert found.dtype == dtype
    size = max(1.0, float(exact.detach().abs().max()))
    eps = max(torch.finfo(dtype).eps, 2**-20)
    torch.testing.assert_close(
        found.detach().cpu().double(), exact.detach(), rtol=eps, atol=2 * eps * size
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("uses_sum", [False, True])
def test_add_norm(on: Any, norm: str, dtype: torch.dtype, uses_sum: bool) -> None:
    x, r, grad, more = (torch.randn(3, 5, 48).to(dtype) for _ in range(4))
    weights = parameters(48, dtype, norm)
    here, there = (t.cuda().requires_grad_() for t in (x, r))
    counted = hits("add_norm"), hits("add_norm_backward")
    y, total = ops.add_norm(here, there, 48, *weights, norm=norm)
    grads = (grad.cuda(), more.cuda()) if uses_sum else (grad.cuda(), None)
    roots = [
        (root, g) for root, g in zip((y, total), grads, strict=True) if g is not None
    ]
    torch.autograd.backward(*zip(*roots, strict=True))
    assert [c.accelerated for c in counted] == [1, 1]
    assert not any("norm" in call for call in emulation.stock_calls())
    assert torch.equal(total.detach().cpu(), x + r)

    given = here, there, *weights
    leaves = [t.detach().cpu().double().requires_grad_() for t in given]
    added = leaves[0] + leaves[1]
    function = F.layer_norm if norm == "layer_norm" else F.rms_norm
    exact = function(added, (48,), *leaves[2:], eps=1e-5)
    loss = (exact * grad.double()).sum()
    (loss + (added * more.double()).sum() if uses_sum else loss).backward()
    near(y, exact, dtype)
    for ours, leaf in zip(given, leaves, strict=True):
        assert ours.grad is not None
        assert leaf.grad is not None
        assert ours.grad.shape == ours.shape
        near(ours.grad, leaf.grad, dtype)


def test_second_derivatives(on: Any) -> None:
    """By the formula, which is differentiable."""
    x, r = (torch.randn(4, 6, device="cuda", requires_grad=True) for _ in range(2))
    weights = parameters(6, torch.float32, "layer_norm")

    def curvature(fused: bool) -> list[Tensor]:
        if fused:
            y, _ = ops.add_norm(x, r, (6,), *weights)
        else:
            y = F.layer_norm(x + r, (6,), *weights)
        (first,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        return list(torch.autograd.grad(first.pow(2).sum(), (x, r, *weights[:1])))

    for ours, stock in zip(curvature(True), curvature(False), strict=True):
        torch.testing.assert_close(ours.cpu(), stock.cpu(), rtol=1e-3, atol=1e-3)


def test_what_add_norm_leaves_to_torch(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda")
    counted = hits("add_norm")
    ops.add_norm(x, x[:1], 6)
    ops.add_norm(x, x.double(), 6)
    ops.add_norm(x.t(), x.t(), 4)
    with ptac.disabled():
        ops.add_norm(x, x, 6)
    assert counted.accelerated == 0
    assert counted.forwarded == {
        "argument": 2, "layout": 1, "disabled in this thread": 1
    }  # fmt: skip
    with pytest.raises(RuntimeError):
        ops.add_norm(x, x, 5)
    with pytest.raises(ValueError, match="no bias"):
        ops.add_norm(x, x, 6, bias=x[0], norm="rms_norm")
    with pytest.raises(ValueError, match="there are: layer_norm"):
        ops.add_norm(x, x, 6, norm="batch_norm")


def test_add_norm_is_torchs_while_the_switch_is_off() -> None:
    x, r, w = torch.randn(4, 6), torch.randn(4, 6), torch.randn(6)
    counted = hits("add_norm")
    for place in ("cpu", "cuda"):
        y, total = ops.add_norm(x.to(place), r.to(place), 6, w.to(place))
        assert torch.equal(total.cpu(), x + r)
        torch.testing.assert_close(y.cpu(), F.layer_norm(x + r, (6,), w))
    assert (counted.accelerated, counted.forwarded) == (0, {})


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_add(on: Any, dtype: torch.dtype, generators: tuple[Any, ...]) -> None:
    x, r, grad = (torch.randn(33, 40).to(dtype).cuda() for _ in range(3))
    counted = hits("dropout_add"), hits("dropout_backward")
    leaf, other = x.requires_grad_(), r.requires_grad_()
    y = ops.dropout_add(leaf, other, 0.25)
    y.backward(grad)
    assert [c.accelerated for c in counted] == [1, 1]
    assert leaf.grad is not None
    kept = leaf.grad.cpu() != 0
    assert 0.7 < float(kept.float().mean()) < 0.8
    expected = x.detach().cpu().float() * kept / 0.75 + r.detach().cpu().float()
    torch.testing.assert_close(y.detach().cpu(), expected.to(dtype))
    assert other.grad is not None
    assert torch.equal(other.grad, grad)
    torch.testing.assert_close(
        leaf.grad.cpu(), (grad.cpu().float() * kept / 0.75).to(dtype)
    )
    # 1,320 elements, four at a time or more, are one round of torch's grid.
    assert generators[0].offset == 4
    again = ops.dropout_add(x.detach(), r.detach(), 0.25)
    assert generators[0].offset == 8
    assert not torch.equal(again.cpu(), y.detach().cpu())
    generators[0].offset = 0
    assert torch.equal(
        ops.dropout_add(x.detach(), r.detach(), 0.25).cpu(), y.detach().cpu()
    )


def test_dropout_add_moves_the_devices_own_generator(
    on: Any, generators: tuple[Any, ...]
) -> None:
    x = torch.randn(8, device="cuda:1")
    ops.dropout_add(x, x, 0.5)
    assert [g.offset for g in generators] == [0, 4]


def test_what_dropout_add_leaves_to_torch(on: Any, generators: tuple[Any, ...]) -> None:
    x = torch.randn(4, 6, device="cuda")
    counted = hits("dropout_add")
    assert torch.equal(ops.dropout_add(x, x, 0.0), x + x)
    assert torch.equal(ops.dropout_add(x, x, 0.5, training=False), x + x)
    assert torch.equal(ops.dropout_add(x, x, 1.0), x)
    assert (counted.accelerated, counted.forwarded) == (0, {})
    ops.dropout_add(x, x[:1], 0.5)
    stream = torch.Stream("cuda")
    with emulation.capturing(stream):
        ops.dropout_add(x, x, 0.5)
    assert counted.forwarded == {"argument": 1, "mode or transform active": 1}
    assert generators[0].offset == 0
    with pytest.raises(ValueError, match="probability"):
        ops.dropout_add(x, x, 1.5)


def test_a_launch_that_fails_gives_the_numbers_back(
    on: Any, generators: tuple[Any, ...]
) -> None:
    x = torch.randn(4, 6, device="cuda")
    counted = hits("dropout_add")
    internals.inject_failure("dropout_add")
    ops.dropout_add(x, x, 0.5)
    assert generators[0].offset == 0
    assert counted.failed == 1


def test_a_captured_add_norm(on: Any) -> None:
    x = torch.randn(4, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, device="cuda", requires_grad=True)
    ops.add_norm(x, x, 64, w)[0].sum().backward()
    counted = hits("add_norm"), hits("add_norm_backward")
    with emulation.capturing(torch.Stream("cuda")):
        ops.add_norm(x, x, 64, w)[0].sum().backward()
    assert [c.accelerated for c in counted] == [1, 1]


def test_compiled_they_are_torchs_own(on: Any) -> None:
    def step(x: Tensor) -> Tensor:
        return ops.add_norm(x, x, 6)[0]

    x = torch.randn(4, 6)
    compiled = torch.compile(step, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), step(x))


def test_shadow_checks(on: Any) -> None:
    x = torch.randn(4, 6, device="cuda", requires_grad=True)
    counted = hits("add_norm"), hits("add_norm_backward")
    with ptac.enable(FUSION, verify=1):
        ops.add_norm(x, x, 6)[0].sum().backward()
    assert [c.accelerated for c in counted] == [1, 1]
    assert any("native_layer_norm" in call for call in emulation.stock_calls())


def test_no_eps_is_torchs(on: Any) -> None:
    """As nn.RMSNorm has it; LayerNorm has none without."""
    x = torch.randn(4, 64).mul(1e-4).cuda()
    counted = hits("add_norm")
    y, _ = ops.add_norm(x, x, 64, eps=None, norm="rms_norm")
    assert counted.accelerated == 1
    with ptac.disabled():
        expected = F.rms_norm((x + x).cpu(), (64,))
    torch.testing.assert_close(y.cpu(), expected)
    with pytest.raises(TypeError):
        ops.add_norm(x, x, 64, eps=None)
