"""pai_torchacc.ops.gated_act and add_act on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from switching import FUSION, hits
from torch import Tensor

import pai_torchacc as ptac
from pai_torchacc import ops

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
ACTS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
OPERATORS = {
    "gated_act": (ops.gated_act, lambda a, b, act: act(a) * b),
    "add_act": (ops.add_act, lambda a, b, act: act(a + b)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("sizes", [(4, 64), (3, 5, 7)])
def test_results_and_gradients(
    on: Any, name: str, act: str, dtype: torch.dtype, sizes: tuple[int, ...]
) -> None:
    ours, stock = OPERATORS[name]
    a, b, grad = (torch.randn(sizes).mul(2).to(dtype) for _ in range(3))
    here = [t.cuda().requires_grad_() for t in (a, b)]
    there = [t.double().requires_grad_() for t in (a, b)]
    counted = hits(name), hits(name + "_backward")
    y = ours(*here, act)
    y.backward(grad.cuda())
    assert [c.accelerated for c in counted] == [1, 1]
    exact = stock(*there, ACTS[act])
    exact.backward(grad.double())
    eps = max(torch.finfo(dtype).eps, 2**-20)
    pairs = [(y, exact), *((x.grad, t.grad) for x, t in zip(here, there, strict=True))]
    for found, truth in pairs:
        assert found is not None
        assert truth is not None
        assert found.dtype == dtype
        torch.testing.assert_close(
            found.detach().cpu().double(), truth.detach(), rtol=eps, atol=16 * eps
        )


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_second_derivatives(on: Any, name: str, act: str) -> None:
    ours, stock = OPERATORS[name]
    a, b = (torch.randn(4, 6, dtype=torch.float32).cuda() for _ in range(2))

    def curvature(function: Callable[..., Tensor], how: Any) -> list[Tensor]:
        leaves = [t.clone().requires_grad_() for t in (a, b)]
        y = function(*leaves, how)
        (first,) = torch.autograd.grad(y.pow(3).sum(), leaves[0], create_graph=True)
        return list(torch.autograd.grad(first.pow(2).sum(), leaves))

    with ptac.disabled():
        expected = curvature(stock, ACTS[act])
    for mine, theirs in zip(curvature(ours, act), expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-4, atol=1e-4)


def test_nan_passes_as_in_stock(on: Any) -> None:
    x = torch.tensor([float("nan"), -1.0, 2.0, float("inf")]).cuda().requires_grad_()
    zero = torch.zeros(4, device="cuda")
    y = ops.add_act(x, zero)
    y.backward(torch.ones(4, device="cuda"))
    with ptac.disabled():
        expected = F.relu(x.detach().cpu())
    assert torch.equal(y.detach().cpu().nan_to_num(7), expected.nan_to_num(7))
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("name", OPERATORS)
def test_what_is_left_to_torch(on: Any, name: str) -> None:
    ours, stock = OPERATORS[name]
    x = torch.randn(4, 6, device="cuda")
    counted = hits(name)
    for a, b in [(x, x[:1]), (x, x.double()), (x.t(), x.t()), (x[:0], x[:0])]:
        found = ours(a, b, "relu")
        assert torch.equal(found.cpu(), stock(a.cpu(), b.cpu(), F.relu))
    assert counted.accelerated == 0
    assert counted.forwarded == {"argument": 1, "dtype": 1, "layout": 1, "empty": 1}
    with pytest.raises(ValueError, match="there are: relu"):
        ours(x, x, "none")
    with pytest.raises(RuntimeError):
        ours(x, x[:3])


@pytest.mark.parametrize("name", OPERATORS)
def test_small_or_compiled_they_are_torchs(on: Any, name: str) -> None:
    ours, stock = OPERATORS[name]
    x = torch.randn(4, 6)
    counted = hits(name)
    assert torch.equal(ours(x, x, "silu"), stock(x, x, F.silu))
    compiled = torch.compile(ours, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, x, "silu"), stock(x, x, F.silu))
    assert counted.accelerated == 0
    assert counted.forwarded in ({"not measured faster": 1}, {"shape": 1})


def test_a_bias_and_its_activation_are_torchs(on: Any) -> None:
    """No row of CUDA's has them."""
    x, b = torch.randn(4, 6, device="cuda"), torch.randn(6, device="cuda")
    counted = hits("bias_act")
    torch.testing.assert_close(ops.bias_gelu(x, b).cpu(), F.gelu(x.cpu() + b.cpu()))
    assert (counted.accelerated, counted.failed) == (0, 0)


@pytest.mark.parametrize("name", OPERATORS)
def test_shadow_checks(on: Any, name: str) -> None:
    ours, _ = OPERATORS[name]
    x = torch.randn(4, 6, device="cuda", requires_grad=True)
    counted = hits(name), hits(name + "_backward")
    with ptac.enable(FUSION, verify=1):
        ours(x, x * 2, "gelu").sum().backward()
    assert [c.accelerated for c in counted] == [1, 1]
    assert not ptac.status()[FUSION].get("quarantined")
