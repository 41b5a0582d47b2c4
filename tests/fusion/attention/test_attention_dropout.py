"""Attention with dropout: torch's random stream, numbers and gradients."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import attending
import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from attending import MASKS, Sizes, mask_of, qkv
from torch import Tensor, nn

import pai_torchacc as ptac

OPS = ("attention_dropout", "attention_dropout_backward")

rows = pytest.mark.parametrize("row", switching.runnable_rows("attention_dropout"))

SIZES: list[Sizes] = [
    (2, 4, 40, 40, 32),
    (1, 3, 130, 65, 64),
    (2, 1, 49, 200, 80),
    (3, 2, 3, 17, 8),
]


def attended(tensors: list[Tensor], *args: Any, **options: Any) -> dict[str, Tensor]:
    """The result, and the elements of all tensors' gradients.

    These lie in memory as the tensors do, where torch's lie as its products leave them.
    """
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = F.scaled_dot_product_attention(*leaves, *args, **options)
    grads = attending.gradients(y, leaves)
    return {"y": y, **{name: g.reshape(-1) for name, g in grads.items()}}


def case_of(
    sizes: Sizes,
    mask: str = "none",
    p: float = 0.1,
    *,
    inside: bool = True,
    **options: Any,
) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        made = mask_of(mask, sizes, dtype)
        tensors = qkv(sizes, dtype, inside=inside)
        return attended(tensors, made, p, mask == "causal", **options)

    return case


hold_served = partial(attending.hold_served, OPS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@rows
def test_numbers(row: str, sizes: Sizes, mask: str) -> None:
    hold_served(case_of(sizes, mask, inside=len(mask) % 2 == 0), row)


@pytest.mark.parametrize("p", [0.001, 0.5, 0.97])
@rows
def test_shares(row: str, p: float) -> None:
    hold_served(case_of((2, 2, 33, 50, 16), p=p), row)


@rows
def test_result_changed_in_place(row: str) -> None:
    """Torch's nodes do not keep the result, nor a mask."""
    given, found = qkv((2, 2, 33, 50, 16)), []
    for is_on in (False, True):
        leaves = [t.detach().requires_grad_() for t in given]
        torch.manual_seed(0)
        with switching.accelerated(*OPS, row=row) if is_on else ptac.disabled():
            mask = torch.linspace(-1, 1, 33 * 50).view(33, 50)
            y = F.scaled_dot_product_attention(*leaves, mask, 0.2)
            y.mul_(3)
            mask.fill_(1)
            found.append(torch.autograd.grad(y.sum(), leaves))
    for ours, stock in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [0.3, -0.5])
@rows
def test_scale(row: str, scale: float) -> None:
    hold_served(case_of((2, 2, 33, 50, 16), scale=scale), row)


@rows
def test_shared_keys(row: str) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        q = contract.draw(2, 6, 20, 32, dtype=dtype)
        k, v = (contract.draw(2, 2, 40, 32, dtype=dtype) for _ in range(2))
        return attended([q, k, v], None, 0.2, enable_gqa=True)

    hold_served(case, row)


@pytest.mark.parametrize("n", [3, 64])
def test_the_same_is_drawn(n: int) -> None:
    """What is dropped shows where values are those of an identity."""
    q, k, _ = qkv((2, 3, n, n, 64))
    v = torch.eye(n, 64).expand(2, 3, n, 64).contiguous()
    found, after = [], []
    for is_on in (False, True):
        torch.manual_seed(5)
        if is_on:
            with switching.accelerated(*OPS):
                hits = switching.hits(OPS[0])
                y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
                assert hits.accelerated == 1
        else:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)
        found.append(y == 0)
        after.append((torch.get_rng_state(), torch.rand(3)))
    assert torch.equal(*found)
    contract.exactly(after[1], after[0])


@rows
def test_what_is_not_finite_is_as_stocks(row: str) -> None:
    """Torch's operators go on with what has been drawn."""
    q, k, v = qkv((1, 2, 40, 40, 16))
    for i, value in ((0, float("nan")), (1, float("inf")), (2, float("-inf"))):
        given = [q.clone(), k.clone(), v.clone()]
        given[i][0, 1, 30, 3] = value
        torch.manual_seed(1)
        stock = attended(given, None, 0.2, True)
        state = torch.get_rng_state()
        with switching.accelerated(*OPS, row=row):
            torch.manual_seed(1)
            hits = switching.hits(OPS[0])
            ours = attended(given, None, 0.2, True)
            assert hits.forwarded == {"values": 1}
        assert torch.equal(torch.get_rng_state(), state)
        for name, t in stock.items():
            assert torch.equal(t.isnan(), ours[name].isnan()), name
            assert torch.equal(t.isinf(), ours[name].isinf()), name


def test_masked_queries_are_zeros() -> None:
    q, k, v = qkv((1, 2, 20, 40, 16))
    mask = torch.rand(20, 40) > 0.5
    mask[3] = False
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        found = attended([q, k, v], mask, 0.3)
        assert hits.accelerated == 1
    assert not found["y"][0, :, 3].any()
    assert not found["of q"].view(1, 2, 20, 16)[0, :, 3].any()
    assert all(t.isfinite().all() for t in found.values())


def test_what_is_left_to_stock() -> None:
    q, k, v = qkv((2, 3, 20, 40, 16))
    attend = F.scaled_dot_product_attention
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        attend = F.scaled_dot_product_attention
        attend(q, k, v)
        attend(q, k, v, dropout_p=1.0)
        attend(q[0], k[0], v[0], dropout_p=0.1)
        attend(*(t.double() for t in (q, k, v)), dropout_p=0.1)
        attend(q, k, v, torch.zeros(20, 40, requires_grad=True), 0.1)
        attend(q.requires_grad_(), k, v, torch.zeros(20, 40).requires_grad_(), 0.1)
        attend(q, k[:1], v[:1], dropout_p=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            attend(q, k, v, dropout_p=0.1)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
            attend(q, k, v, dropout_p=0.1)
        assert not hits.accelerated
        for wrong in ((q,), (q, k, v[..., :3, :]), (q, k, "v")):
            with pytest.raises((TypeError, RuntimeError)):
                attend(*wrong, dropout_p=0.1)
        with pytest.raises(TypeError):
            attend(q, k, v, dropout_p=0.1, no_such=1)
        assert not hits.accelerated
        attend(q, k, v, dropout_p=0.1)
        assert hits.accelerated == 1


def twice(tensors: list[Tensor]) -> list[Tensor]:
    torch.manual_seed(2)
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = F.scaled_dot_product_attention(*leaves, dropout_p=0.2)
    grads = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
    return list(torch.autograd.grad(sum(g.square().sum() for g in grads), leaves))


def test_second_derivatives() -> None:
    tensors = [t.double() for t in qkv((1, 2, 9, 11, 8))]
    exact = twice(tensors)
    singles = [t.float() for t in tensors]
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[0])
        ours = twice(singles)
        assert hits.accelerated == 1
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-3, atol=1e-4)


def test_functorch_is_stocks() -> None:
    q, k, v = qkv((2, 3, 20, 30, 16))

    def loss(q: Tensor) -> Tensor:
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        return y.square().mean()

    torch.manual_seed(3)
    stock = torch.func.grad(loss)(q)
    with switching.accelerated(*OPS):
        torch.manual_seed(3)
        ours = torch.func.grad(loss)(q)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-6)


def test_partial_gradients() -> None:
    q, k, v = qkv((2, 3, 20, 30, 16))
    with switching.accelerated(*OPS):
        hits = switching.hits(OPS[1])
        y = F.scaled_dot_product_attention(q, k.requires_grad_(), v, dropout_p=0.3)
        y.sum().backward()
        assert hits.accelerated == 1
    assert k.grad is not None
    assert q.grad is None


def steps(model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(4)
    model = copy.deepcopy(model).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


@pytest.mark.parametrize("with_mask", [False, True])
def test_an_encoder_trains_as_by_stock(with_mask: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.2, batch_first=True)
    padding = torch.arange(20) >= torch.tensor([[20], [13]])
    x = torch.randn(2, 20, 32)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.layer(
                x, src_key_padding_mask=padding if with_mask else None
            )
            return found

    stock = steps(Model(), x)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = steps(Model(), x)
        assert [h.accelerated for h in hits] == [3, 3]
    for a, b in zip(ours, stock, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_function_comes_back() -> None:
    before = F.scaled_dot_product_attention
    with switching.accelerated(*OPS):
        assert F.scaled_dot_product_attention is not before
    assert F.scaled_dot_product_attention is before


def test_gradients_follow_their_forward_call() -> None:
    """Whatever a table says of them alone: torch would have to begin anew."""
    q, k, v = qkv((1, 2, 20, 30, 16))
    with ptac.enable(include=OPS), switching.pins(OPS[:1]):
        hits = switching.hits(OPS[1])
        y = F.scaled_dot_product_attention(q.requires_grad_(), k, v, dropout_p=0.3)
        y.sum().backward()
        assert hits.accelerated == 1
