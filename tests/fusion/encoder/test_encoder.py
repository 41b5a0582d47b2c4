"""Torch's encoder layer and self-attention in inference, beside stock's operators."""

from __future__ import annotations

import copy
import math
import threading
from typing import Any

import contract
import pytest
import switching
import torch
from encoding import (
    ATTEND,
    ATTENTION,
    LAYER,
    MASKS,
    OPS,
    Sizes,
    attended,
    encoded,
    mask_of,
    model,
    weights,
)
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C

SIZES = [
    Sizes(2, 9, 16, 2, 24),
    Sizes(3, 17, 64, 4, 256),
    Sizes(1, 130, 32, 4, 32),
    Sizes(2, 50, 30, 5, 50),
]
SMALL = SIZES[1]


def hold_served(op: str, case: contract.Case) -> None:
    with switching.accelerated(*OPS):
        hits = switching.hits(op)
        contract.hold(case)
        assert hits.accelerated, hits
        assert not hits.failed, hits
        assert not set(hits.forwarded) - {"disabled in this thread", "dtype"}, hits


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_layers(sizes: Sizes, mask: str) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*sizes[:3], dtype=dtype)
        return {
            f"{gelu} {first}": encoded(sizes, x, mask, gelu=gelu, norm_first=first)
            for gelu, first in ((False, False), (True, True))
        }

    hold_served(LAYER, case)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_attention(sizes: Sizes, mask: str) -> None:
    def case(dtype: torch.dtype) -> dict[str, Tensor]:
        x = contract.draw(*sizes[:3], dtype=dtype)
        return {"y": attended(sizes, x, mask)}

    hold_served(ATTENTION, case)


def test_products_by_rows_of_linear_layers() -> None:
    """Every row of linear_act multiplies in it."""
    for row in switching.runnable_rows("linear_act"):

        def case(dtype: torch.dtype) -> dict[str, Tensor]:
            return {"y": encoded(SMALL, contract.draw(*SMALL[:3], dtype=dtype))}

        with (
            switching.accelerated("linear_act", row=row),
            switching.accelerated("linear_act", *OPS),
        ):
            hits = switching.hits(LAYER)
            contract.hold(case)
            assert hits.accelerated


def lying(x: Tensor) -> dict[str, Tensor]:
    """The same numbers in other places, and one that is seen again and again."""
    return {
        "turned": x.transpose(0, 1).contiguous().transpose(0, 1),
        "with gaps": torch.cat((x, x), 2)[..., : x.shape[2]],
        "part of longer ones": torch.cat((x, x), 1)[:, : x.shape[1]],
        "expanded": x[:1].expand(x.shape),
        "off by one": torch.cat((x.new_zeros(1), x.flatten()))[1:].view(x.shape),
    }


def test_where_x_lies() -> None:
    for name, x in lying(torch.randn(SMALL[:3])).items():
        torch.manual_seed(0)
        stock = encoded(SMALL, x), attended(SMALL, x)
        with switching.accelerated(*OPS):
            hits = [switching.hits(op) for op in OPS]
            torch.manual_seed(0)
            ours = encoded(SMALL, x), attended(SMALL, x)
            assert [h.accelerated for h in hits] == [1, 1], (name, hits)
        for a, b in zip(ours, stock, strict=True):
            assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["pairs", "keys", "all"])
def test_masks_of_floats(kind: str) -> None:
    """What modules make of a mask of truth values: 0, or -inf where it was true.

    Stock takes any number but 0 for -inf.
    """
    x, w = torch.randn(SMALL[:3]), weights(SMALL, torch.float32)[:4]
    mask, number = mask_of(kind, SMALL)
    assert mask is not None
    for value in (-math.inf, 0.5):
        given = torch.zeros(mask.shape).masked_fill_(mask, value)
        args = (x, x, x, SMALL.width, SMALL.heads, *w, given, False, True, number)
        stock = ATTEND(*args)[0]
        with switching.accelerated(*OPS):
            hits = switching.hits(ATTENTION)
            ours = ATTEND(*args)[0]
            assert hits.accelerated == 1
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_who_sees_nothing_is_stocks(kind: int) -> None:
    sizes = Sizes(3, 7, 16, 2, 16)
    shape = [(7, 7), (3, 7), (3, 2, 7, 7)][kind]
    x, w = torch.randn(sizes[:3]), weights(sizes, torch.float32)[:4]
    mask = torch.rand(shape) > 0.8
    mask.view(-1, 7)[1] = True
    args = (x, x, x, sizes.width, sizes.heads, *w, mask, False, True, kind)
    stock = ATTEND(*args)[0]
    with switching.accelerated(*OPS):
        hits = switching.hits(ATTENTION)
        ours = ATTEND(*args)[0]
        assert hits.forwarded == {"values": 1}
    contract.exactly(ours, stock)


def test_what_is_not_finite() -> None:
    """NaN and infinity in x and weights: in place and kind as stock's."""
    for value in (math.nan, math.inf):
        for i in range(13):
            given = [torch.randn(SMALL[:3]), *weights(SMALL, torch.float32)]
            given[i].view(-1)[3] = value
            x, *w = given
            args = (x, 64, 4, *w[:4], False, False, 1e-5, *w[4:])
            stock = torch.ops.aten._transformer_encoder_layer_fwd(*args)
            with switching.accelerated(*OPS):
                ours = torch.ops.aten._transformer_encoder_layer_fwd(*args)
            assert torch.equal(ours.isnan(), stock.isnan()), (value, i)
            assert torch.equal(ours.isinf(), stock.isinf()), (value, i)


def test_what_is_left_to_others() -> None:
    x = torch.randn(SMALL[:3])
    w = weights(SMALL, torch.float32)[:4]
    mask = mask_of("keys", SMALL)[0]
    assert mask is not None

    def attend(*args: Any) -> Any:
        return ATTEND(*args[:3], 64, 4, *w, *args[3:])

    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        attend(x, x, x)  # weights are asked for
        attend(x, x.clone(), x, None, False)
        assert hits[1].forwarded == {"argument": 2}
        attend(x, x, x, mask.long(), False, True, 1)
        encoded(SMALL, x.double())
        assert hits[0].forwarded == {"dtype": 1}
        assert hits[1].forwarded == {"argument": 2, "dtype": 2}
        encoded(SMALL._replace(batch=0), x[:0])
        encoded(SMALL._replace(length=1), x[:, :1])
        assert hits[0].forwarded == {"dtype": 1, "empty": 1, "shape": 1}
        with pytest.raises(RuntimeError):
            attend(x[0], x[0], x[0], None, False)
        with pytest.raises(RuntimeError):
            ATTEND(x, x, x, 64, 5, *w, None, False)
        with pytest.raises(RuntimeError):
            attend(x, x, x, mask[:, :3], False, True, 1)
        with pytest.raises(RuntimeError, match="Mask Type"):
            attend(x, x, x, mask, False)
        assert not any(h.accelerated for h in hits)


def test_nested_tensors_are_stocks() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, mask = torch.randn(SMALL[:3]), mask_of("keys", SMALL)[0]
    with torch.no_grad():
        stock = encoder(x, src_key_padding_mask=mask)
        with switching.accelerated(*OPS):
            ours = encoder(x, src_key_padding_mask=mask)
    contract.exactly(ours, stock)


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_modules(activation: str, norm_first: bool) -> None:
    net = model(SMALL, activation=activation, norm_first=norm_first)
    double = copy.deepcopy(net).double()
    x, causal = torch.randn(SMALL[:3]), mask_of("pairs", SMALL)[0]
    padding = mask_of("keys", SMALL)[0]
    for options in ({}, {"mask": causal}, {"src_key_padding_mask": padding}):
        with torch.no_grad():
            stock, exact = net(x, **options), double(x.double(), **options)
            with switching.accelerated(*OPS):
                hits = switching.hits(LAYER)
                ours, again = net(x, **options), copy.deepcopy(net)(x, **options)
                assert hits.accelerated == 4, hits
        contract.exactly(again, ours)
        bound = 2 * (stock - exact).square().mean().sqrt() + 1e-7
        assert (ours - exact).square().mean().sqrt() <= bound


def test_attention_modules() -> None:
    module = nn.MultiheadAttention(64, 4, batch_first=True).eval()
    x = torch.randn(SMALL[:3])
    with torch.no_grad():
        stock, nothing = module(x, x, x, need_weights=False)
        with switching.accelerated(*OPS):
            hits = switching.hits(ATTENTION)
            ours, none = module(x, x, x, need_weights=False)
            assert hits.accelerated == 1
    assert (none is None) is (nothing is None)
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


def test_training_and_gradients_are_left_alone() -> None:
    net = model(SMALL, dropout=0.0)
    x = torch.randn(SMALL[:3])

    def gradients() -> list[Tensor]:
        y = net(x).square().sum()
        return list(torch.autograd.grad(y, list(net.parameters())))

    stock = gradients()
    with switching.accelerated(*OPS):
        hits = [switching.hits(op) for op in OPS]
        ours = gradients()
        net.train()
        net(x)
        assert not any(h.accelerated for h in hits)
    contract.exactly(ours, stock)


def test_autocast_and_functorch() -> None:
    net = model(SMALL)
    x = torch.randn(SMALL[:3])

    def one(x: Tensor) -> Tensor:
        return net(x.unsqueeze(0)).squeeze(0)

    def results() -> list[Tensor]:
        with torch.no_grad():
            mapped = torch.vmap(one)(x)
            with torch.autocast("cpu", torch.bfloat16):
                return [mapped, net(x).float()]

    stock = results()
    with switching.accelerated(*OPS):
        hits = switching.hits(LAYER)
        ours = results()
        assert hits.accelerated > 0
        assert hits.forwarded == {"autocast": 1, "dtype": 1}  # of its bfloat16
    torch.testing.assert_close(ours[0], stock[0], rtol=1e-4, atol=1e-5)
    contract.exactly(ours[1], stock[1])


def test_level_exact_is_stocks() -> None:
    x = torch.randn(SMALL[:3])
    torch.manual_seed(0)
    stock = encoded(SMALL, x)
    with ptac.enable(include=OPS, numerics="exact"):
        torch.manual_seed(0)
        ours = encoded(SMALL, x)
    contract.exactly(ours, stock)


def test_lowered_products_are_stocks() -> None:
    x = torch.randn(SMALL[:3])
    before = torch.backends.mkldnn.matmul.fp32_precision
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        with switching.accelerated(*OPS):
            hits = switching.hits(LAYER)
            encoded(SMALL, x)
            assert hits.forwarded == {"lowered precision": 1}
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before


def test_switched_while_in_use() -> None:
    net, x = model(SMALL), torch.randn(SMALL[:3])
    with torch.no_grad():
        stock = net(x)
    wrong: list[float] = []
    stops = threading.Event()

    def use() -> None:
        with torch.no_grad():
            while not stops.is_set():
                y = net(x)
                if not torch.allclose(y, stock, rtol=1e-4, atol=1e-5):
                    wrong.append((y - stock).abs().max().item())

    users = [threading.Thread(target=use) for _ in range(2)]
    for user in users:
        user.start()
    for _ in range(20):
        with switching.accelerated(*OPS), torch.no_grad():
            net(x)
    stops.set()
    for user in users:
        user.join()
    assert not wrong


def test_shadow_checks_agree() -> None:
    x = torch.randn(SMALL[:3])
    trouble = [_C.counters(op)[5] for op in OPS]
    with switching.accelerated(*OPS, verify=1):
        hits = [switching.hits(op) for op in OPS]
        for mask in MASKS:
            encoded(SMALL, x, mask)
            attended(SMALL, x, mask)
        assert [h.accelerated for h in hits] == [4, 4]
    assert [_C.counters(op)[5] for op in OPS] == trouble


def test_a_model_is_held_to_its_contract() -> None:
    with switching.accelerated(*OPS):
        hits = switching.hits(LAYER)
        assert ptac.verify(model(SMALL), torch.randn(SMALL[:3]), backward=False)
        assert hits.accelerated
