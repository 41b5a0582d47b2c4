"""Attention in float32 behind F.scaled_dot_product_attention, and its gradients."""

from __future__ import annotations

import itertools
import threading
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

OPS = ("attention", "attention_backward")
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

rows = pytest.mark.parametrize("row", switching.runnable_rows("attention"))

SIZES: list[Sizes] = [
    (2, 4, 40, 40, 32),
    (1, 3, 130, 65, 64),
    (2, 1, 49, 300, 80),
    (3, 2, 5, 17, 8),
    (2, 3, 1, 150, 64),
    (1, 1, 70, 7, 24),
]


def attended(tensors: list[Tensor], **options: Any) -> dict[str, Tensor]:
    """The result, and the gradients of all tensors."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    y = F.scaled_dot_product_attention(*leaves, **options)
    return {"y": y, **attending.gradients(y, leaves)}


def case_of(
    sizes: Sizes, mask: str = "none", *, inside: bool = True, **options: Any
) -> contract.Case:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        tensors = qkv(sizes, dtype, inside=inside)
        given = {
            "attn_mask": mask_of(mask, sizes, dtype),
            "is_causal": mask == "causal",
        }
        return attended(tensors, **given, **options)

    return case


def hold_served(case: contract.Case, row: str) -> None:
    hits = attending.hold_served(OPS, case, row)
    others = [set(h.forwarded) - {"disabled in this thread", "dtype"} for h in hits]
    assert not any(others), others


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@rows
def test_numbers(row: str, sizes: Sizes, mask: str) -> None:
    if mask == "causal" and sizes[2] == 1:  # sees one key: stock's
        sizes = (*sizes[:2], 2, *sizes[3:])
    hold_served(case_of(sizes, mask, inside=len(mask) % 2 == 0), row)


@pytest.mark.parametrize("d", [1, 2, 3, 7, 16, 17, 33, 64, 72, 100, 128, 160, 256])
@rows
def test_head_sizes(row: str, d: int) -> None:
    hold_served(case_of((1, 2, 19, 35, d), "causal" if d % 2 else "none"), row)


@pytest.mark.parametrize("scale", [0.01, 1.5, -0.5, 0.0])
@rows
def test_scale(row: str, scale: float) -> None:
    hold_served(case_of((2, 2, 33, 40, 16), scale=scale), row)


@pytest.mark.parametrize("scale", [-0.5, 0.0])
@rows
def test_causal_with_a_scale_that_turns_what_is_masked(row: str, scale: float) -> None:
    """Torch's own numbers, which are NaN then."""
    tensors = qkv((2, 2, 33, 40, 16))
    stock = attended(tensors, is_causal=True, scale=scale)
    with switching.accelerated(*OPS, row=row):
        hits = switching.hits("attention")
        ours = attended(tensors, is_causal=True, scale=scale)
        assert hits.forwarded == {"argument": 1}
    torch.testing.assert_close(ours, stock, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("n_queries", [2, 3, 4, 5, 16, 47, 48, 49, 97])
@rows
def test_numbers_of_queries(row: str, n_queries: int) -> None:
    hold_served(case_of((1, 2, n_queries, 70, 32), "causal"), row)


@pytest.mark.parametrize("n_queries", [1, 33])
@rows
def test_shared_keys(row: str, n_queries: int) -> None:
    """Heads that share a head of keys; torch 2.11 repeats keys for them."""

    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        q = contract.draw(2, 6, n_queries, 32, dtype=dtype)
        k, v = (contract.draw(2, 2, 40, 32, dtype=dtype) for _ in range(2))
        return attended([q, k, v], enable_gqa=True)

    with switching.accelerated(*OPS, row=row):
        hits = [switching.hits(op) for op in OPS]
        contract.hold(case)
        assert all(h.accelerated for h in hits)


def views(dtype: torch.dtype) -> list[list[Tensor]]:
    packed = contract.draw(2, 20, 3, 4, 16, dtype=dtype).permute(2, 0, 3, 1, 4)
    few = contract.draw(3, 2, 1, 20, 16, dtype=dtype).expand(3, 2, 4, 20, 16)
    wide = contract.draw(3, 2, 4, 41, 40, dtype=dtype)[..., 1:40:2, 7:23]
    return [list(packed), list(few), list(wide), [packed[0], few[1], wide[2]]]


@pytest.mark.parametrize("which", range(4))
@rows
def test_views(row: str, which: int) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        return attended(views(dtype)[which], is_causal=True)

    hold_served(case, row)


@rows
def test_results_lie_as_stocks(row: str) -> None:
    for tensors in (*views(torch.float32), qkv(SIZES[0], inside=False)):
        grad = torch.ones(()).expand(tensors[0].shape)
        stock = FORWARD(*tensors)
        stock_grads = BACKWARD(grad, *tensors, *stock, 0.0, False)
        with switching.accelerated(*OPS, row=row):
            hits = [switching.hits(op) for op in OPS]
            ours = FORWARD(*tensors)
            grads = BACKWARD(grad, *tensors, *stock, 0.0, False)
            assert [h.accelerated for h in hits] == [1, 1], hits
        for a, b in zip((*ours, *grads), (*stock, *stock_grads), strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@rows
def test_masked_queries_are_zeros(row: str) -> None:
    mask = torch.rand(20, 40) > 0.5
    mask[3] = False
    for n_queries in (20, 4):
        q, k, v = qkv((1, 2, n_queries, 40, 16))
        part = mask[:n_queries]
        added = torch.zeros(part.shape).masked_fill_(~part, -float("inf"))
        stock = FORWARD(q, k, v, attn_mask=added)
        with switching.accelerated(*OPS, row=row):
            hits = switching.hits("attention")
            ours = FORWARD(q, k, v, attn_mask=added)
            found = attended([q, k, v], attn_mask=part)
            assert hits.accelerated == 2
        assert not ours[0][0, :, 3].any()
        assert not found["of q"][0, :, 3].any()
        for a, b in zip(ours, stock, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@rows
def test_far_and_large_scores(row: str) -> None:
    """Later keys with larger scores make all that went before vanish."""
    q, k, v = qkv((1, 2, 20, 400, 16))
    k = k * torch.linspace(0, 300, 400).view(400, 1)
    hits = switching.hits("attention")
    with switching.accelerated(*OPS, row=row):
        y = F.scaled_dot_product_attention(q, k, v)
    exact = F.scaled_dot_product_attention(q.double(), k.double(), v.double())
    stock = F.scaled_dot_product_attention(q, k, v)
    assert hits.accelerated == 1
    error = (y - exact).abs().max()
    assert error <= 3 * (stock - exact).abs().max() + 1e-6


@rows
def test_what_is_not_finite_is_stocks(row: str) -> None:
    nan, inf = float("nan"), float("inf")
    q, k, v = qkv((1, 2, 40, 40, 16))
    for i, value in itertools.product(range(3), (nan, inf, -inf)):
        given = [q.clone(), k.clone(), v.clone()]
        given[i][0, 1, 30, 3] = value
        stock = attended(given, is_causal=True)
        with switching.accelerated(*OPS, row=row):
            hits = [switching.hits(op) for op in OPS]
            ours = attended(given, is_causal=True)
            assert all(h.forwarded == {"values": 1} for h in hits), hits
        for name, t in stock.items():
            assert torch.equal(t.isnan(), ours[name].isnan()), name
            contract.exactly(ours[name].nan_to_num(), t.nan_to_num())


def test_what_is_left_to_others() -> None:
    q, k, v = qkv((2, 3, 20, 40, 16))
    with switching.accelerated(*OPS):
        hits = switching.hits("attention")
        with torch.autocast("cpu", torch.bfloat16):
            F.scaled_dot_product_attention(q, k, v)
        F.scaled_dot_product_attention(*(t.double() for t in (q, k, v)))
        F.scaled_dot_product_attention(*(t.half() for t in (q, k, v)))
        assert hits.forwarded == {"dtype": 3}
        F.scaled_dot_product_attention(*(t[:0] for t in (q, k, v)))
        FORWARD(q[:0], k[:0], v[:0])
        F.scaled_dot_product_attention(q[:, :, :1], k, v, is_causal=True)
        F.scaled_dot_product_attention(q, k[:, :, :1], v[:, :, :1])
        assert hits.forwarded["dtype"] == 3
        assert hits.forwarded["shape"] == 2
        assert hits.accelerated == 0
        for wrong in ((q, k[..., :8], v), (q, k[:, :2], v)):
            with pytest.raises(RuntimeError):
                F.scaled_dot_product_attention(*wrong)
        assert hits.accelerated == 0


def twice(q: Tensor, k: Tensor, v: Tensor) -> Any:
    leaf = q.detach().requires_grad_()
    y = F.scaled_dot_product_attention(leaf, k, v)
    (grad,) = torch.autograd.grad(y.square().sum(), leaf, create_graph=True)
    return torch.autograd.grad(grad.sum(), leaf)[0]


def test_second_derivatives_are_as_stocks() -> None:
    """Torch's node has none, and says so."""
    tensors = qkv((1, 2, 9, 9, 8))
    stock = contract.said(lambda: twice(*tensors))
    with switching.accelerated(*OPS):
        ours = contract.said(lambda: twice(*tensors))
    assert str(ours) == str(stock)


def test_functorch() -> None:
    q, k, v = qkv((2, 3, 20, 30, 16))

    def loss(q: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()

    stock = torch.func.grad(loss)(q)
    batch = torch.stack((q, 2 * q))
    stock_mapped = torch.vmap(lambda q: F.scaled_dot_product_attention(q, k, v))(batch)
    with switching.accelerated(*OPS):
        ours = torch.func.grad(loss)(q)
        mapped = torch.vmap(lambda q: F.scaled_dot_product_attention(q, k, v))(batch)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(mapped, stock_mapped, rtol=1e-4, atol=1e-6)


@rows
def test_threads_do_not_change_bits(row: str) -> None:
    tensors = qkv((2, 5, 90, 100, 32))
    with switching.accelerated(*OPS, row=row):
        first, *others = attending.by_threads(lambda: attended(tensors, is_causal=True))
    for other in others:
        contract.exactly(list(other.values()), list(first.values()))


def test_switched_while_in_use() -> None:
    tensors = qkv((1, 2, 60, 60, 16))
    stock = attended(tensors)
    wrong: list[str] = []
    stops = threading.Event()

    def use() -> None:
        while not stops.is_set():
            for name, t in attended(tensors).items():
                if not torch.allclose(t, stock[name], rtol=1e-4, atol=1e-5):
                    wrong.append(name)

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    for _ in range(20):
        with switching.accelerated(*OPS):
            attended(tensors)
    stops.set()
    for user in users:
        user.join()
    assert not wrong


def test_shadow_checks_agree() -> None:
    tensors = qkv((2, 4, 40, 40, 32))
    attending.hold_shadow_checks(OPS, lambda: attended(tensors, is_causal=True))


def test_a_model_is_held_to_its_contract() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        assert ptac.verify(layer, torch.randn(2, 20, 32))
        assert all(h.accelerated for h in hits)
