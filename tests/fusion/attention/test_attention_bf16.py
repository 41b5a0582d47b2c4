"""Attention by two products in bfloat16, with our own weights between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import attending
import contract
import pytest
import switching
import torch
import torch.nn.functional as F
from attending import MASKS, Sizes, mask_of, qkv
from lowering import needs_bf16
from torch import Tensor

import pai_torchacc as ptac

pytestmark = needs_bf16

ROW = "bf16_products"


@contextmanager
def products() -> Iterator[switching.Hits]:
    with switching.accelerated("attention", row=ROW, numerics="fast"):
        yield switching.hits("attention")


SIZES = (
    (2, 4, 40, 40, 32),
    (1, 3, 130, 65, 64),
    (3, 2, 5, 17, 8),
    (2, 1, 1, 33, 16),
    (1, 1, 70, 7, 24),
    (1, 2, 3, 1, 1),
    (1, 40, 160, 170, 16),  # several parts
)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_numbers(sizes: Sizes, mask: str, inside: bool) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        tensors = qkv(sizes, dtype, inside=inside)
        lowered = torch.bfloat16 if torch.is_autocast_enabled("cpu") else dtype
        made = mask_of(mask, sizes, lowered)
        y = F.scaled_dot_product_attention(*tensors, made, is_causal=mask == "causal")
        return {"y": y.to(dtype)}

    with products() as hits:
        contract.hold(case, bf16=True)
        is_refused = mask == "turned" and 1 not in sizes[2:4]
        assert bool(hits.accelerated) != is_refused
        assert ("layout" in hits.forwarded) == is_refused


@pytest.mark.parametrize("scale", [0.01, 3.0, -0.5, 0.0])
def test_scale(scale: float) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        tensors = qkv((2, 2, 33, 40, 16), dtype, inside=True)
        return {"y": F.scaled_dot_product_attention(*tensors, scale=scale).to(dtype)}

    with products() as hits:
        contract.hold(case, bf16=True)
        assert hits.accelerated


def test_masked_queries_are_zeros() -> None:
    torch.manual_seed(0)
    q, k, v = qkv((1, 2, 20, 40, 16), torch.float32, inside=True)
    mask = torch.ones(20, 40, dtype=torch.bool)
    mask[3] = False
    stock = F.scaled_dot_product_attention(q, k, v, mask)
    with products() as hits:
        y = F.scaled_dot_product_attention(q, k, v, mask)
        assert hits.accelerated == 1
    assert not y[0, :, 3].any()
    torch.testing.assert_close(y, stock, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("offsets", [(1, 4), (1, 16), (0, 100), (4, 0)], ids=str)
@pytest.mark.parametrize("factor", [1, 4, 8])
def test_queries_and_keys_away_from_zero(
    offsets: tuple[float, float], factor: float
) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        q, k, v = qkv((2, 2, 100, 120, 64), dtype, inside=True)
        q, k = factor * q + offsets[0], k + offsets[1]
        return {"y": F.scaled_dot_product_attention(q, k, v).to(dtype)}

    with products() as hits:
        contract.hold(case, bf16=True)
        assert hits.accelerated


def test_what_is_not_finite_stays_where_it_is() -> None:
    q, k, v = qkv((1, 2, 40, 40, 16), torch.float32, inside=True)
    nan, inf = float("nan"), float("inf")
    for tensor, value in ((q, nan), (k, inf), (v, nan), (v, 3.4e38)):
        t = tensor.clone()
        t[0, 1, 30, 3] = value
        given = [t if tensor is other else other for other in (q, k, v)]
        stock = F.scaled_dot_product_attention(*given, is_causal=True)
        with products() as hits:
            y = F.scaled_dot_product_attention(*given, is_causal=True)
            assert hits.forwarded == {"values": 1}
        contract.exactly(y, stock)


def test_large_scores() -> None:
    """The largest of a row is taken off before its exponential."""
    q, k, v = qkv((1, 2, 20, 40, 16), torch.float32, inside=False)
    with products() as hits:
        y = F.scaled_dot_product_attention(1e4 * q, k, v)
        assert hits.accelerated == 1
    winner = (q.bfloat16().float() @ k.bfloat16().float().mT).argmax(-1)
    expected = v.gather(2, winner.unsqueeze(-1).expand(-1, -1, -1, v.shape[-1]))
    assert y.isfinite().all()
    close = (y - expected).abs().amax(-1) < 0.05
    assert close.float().mean() > 0.9  # in others two keys are alike


def test_sums_are_those_of_the_exponentials() -> None:
    q, k, v = qkv((2, 3, 20, 40, 16), torch.float32, inside=True)
    aten = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    stock, sums = aten(q, k, v)
    with products() as hits:
        y, ours = aten(q, k, v)
        assert hits.accelerated == 1
    assert (y.stride(), ours.stride()) == (stock.stride(), sums.stride())
    torch.testing.assert_close(ours, sums, rtol=0, atol=0.05)


def test_what_is_left_to_others() -> None:
    q, k, v = qkv((2, 3, 20, 40, 16), torch.float32, inside=True)
    attend = F.scaled_dot_product_attention
    with products() as hits:
        attend(q.requires_grad_(), k, v)
        assert hits.forwarded == {"gradient not supported": 1}
        with torch.no_grad():
            attend(q, k, v)
        with torch.inference_mode():
            attend(q, k, v)
        assert hits.accelerated == 2
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            attend(q.detach(), k, v)
        attend(*(t.detach().double() for t in (q, k, v)))
        attend(*(t.detach()[:, :, :0] for t in (q, k, v)))
        assert hits.accelerated == 2


def test_threads() -> None:
    tensors = qkv((2, 20, 90, 100, 32), torch.float32, inside=True)

    def twice() -> list[Tensor]:
        return [F.scaled_dot_product_attention(*tensors) for _ in range(2)]

    with products():
        found = [y for both in attending.by_threads(twice) for y in both]
    for y in found[1:]:
        torch.testing.assert_close(y, found[0], rtol=0, atol=2e-2)
    contract.exactly(found[0], found[1])


def test_shadow_checks_agree() -> None:
    tensors = qkv((2, 4, 40, 40, 32), torch.float32, inside=True)
    run = partial(F.scaled_dot_product_attention, *tensors)
    attending.hold_shadow_checks(("attention",), run, row=ROW, numerics="fast")


def test_a_model_is_held_to_its_contract() -> None:
    class Attend(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    with products():
        tensors = qkv((2, 4, 40, 40, 32), torch.float32, inside=True)
        assert ptac.verify(Attend(), *tensors)
