"""int8 attention against stock's with the same, dequantized weights."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import int8
import pytest
import torch
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import operators
from pai_torchacc.quantization.attention import Int8MultiheadAttention

EMBED, HEADS, BATCH, SOURCES, TARGETS = 16, 4, 3, 7, 5


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield
    ptac.disable()


def pair(**options: Any) -> tuple[nn.MultiheadAttention, nn.MultiheadAttention]:
    """An int8 attention, and stock's with its dequantized weights."""
    torch.manual_seed(0)
    ours = nn.MultiheadAttention(EMBED, HEADS, **options).eval()
    if ours.in_proj_bias is not None:
        nn.init.normal_(ours.in_proj_bias)
        nn.init.normal_(ours.out_proj.bias)
    ptac.quantize_model(ours, method="int8")
    assert type(ours) is Int8MultiheadAttention
    stock = ptac.dequantize_model(copy.deepcopy(ours))
    assert type(stock) is nn.MultiheadAttention
    return ours, stock


def exact(monkeypatch: pytest.MonkeyPatch) -> None:
    ptac.enable_model_quantization()
    monkeypatch.setitem(operators.kernels, "int8_linear", int8.exact_linear)
    int8.calls_made.clear()


def inputs(kind: str, batch_first: bool) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def made(length: int) -> Tensor:
        sizes = (BATCH, length) if batch_first else (length, BATCH)
        sizes = (length,) if kind == "unbatched" else sizes
        return torch.randn(*sizes, EMBED, generator=generator)

    q, k, v = made(TARGETS), made(SOURCES), made(SOURCES)
    return {
        "self": (q, q, q),
        "unbatched": (q, q, q),
        "cross": (q, k, k),
        "three": (q, k, v),
        "query is value": (q, k[..., :], k[..., :]),
    }[kind]


def masks(kind: str, n_sources: int, is_batched: bool) -> list[dict[str, Any]]:
    causal = torch.ones(TARGETS, n_sources).triu(1).bool()
    padding = torch.zeros(BATCH, n_sources).bool()
    padding[1:, -2:] = True
    padding = padding if is_batched else padding[1]
    every = causal.repeat((BATCH if is_batched else 1) * HEADS, 1, 1)

    def floats(mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape).masked_fill(mask, -1e4)

    return {
        "none": [{}],
        "masks": [
            {"attn_mask": causal},
            {"attn_mask": floats(causal)},
            {"attn_mask": every},
            {"attn_mask": causal, "is_causal": True},
        ],
        "padding": [
            {"key_padding_mask": padding},
            {"key_padding_mask": floats(padding)},
        ],
        "both": [
            {"attn_mask": causal, "key_padding_mask": padding},
            {"attn_mask": floats(every), "key_padding_mask": floats(padding)},
            {"attn_mask": causal, "key_padding_mask": padding, "is_causal": True},
        ],
    }[kind]


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", ["self", "unbatched", "cross", "three"])
@pytest.mark.parametrize("masking", ["none", "masks", "padding", "both"])
def test_every_mask(
    monkeypatch: pytest.MonkeyPatch, kind: str, masking: str, batch_first: bool
) -> None:
    exact(monkeypatch)
    ours, stock = pair(batch_first=batch_first)
    q, k, v = inputs(kind, batch_first)
    is_self = q is k
    n_sources = TARGETS if is_self else SOURCES
    for mask, needs, average in itertools.product(
        masks(masking, n_sources, kind != "unbatched"), (True, False), (True, False)
    ):
        options = {**mask, "need_weights": needs, "average_attn_weights": average}
        int8.calls_made.clear()
        a, weights_a = stock(q, k, v, **options)
        b, weights_b = ours(q, k, v, **options)
        assert len(int8.calls_made) == {"cross": 3, "three": 4}.get(kind, 2)
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
        assert (weights_a is None) == (weights_b is None)
        if weights_a is not None:
            torch.testing.assert_close(weights_b, weights_a, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_rounding_of_inputs_is_small(bias: bool) -> None:
    with int8.kernels():
        ours, stock = pair(batch_first=True, bias=bias)
        x = inputs("self", True)[0]
        a, b = stock(x, x, x)[0], ours(x, x, x)[0]
        assert 35 < int8.sqnr_db(a, b) < 60


def test_split_pieces_stay_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention between sequences splits the weight; everything goes on working."""
    exact(monkeypatch)
    ours, stock = pair(batch_first=True)
    state = {k: v.clone() for k, v in ours.state_dict().items()}
    for kind in ("self", "cross", "three", "self", "cross"):
        args = inputs(kind, True)
        torch.testing.assert_close(ours(*args)[0], stock(*args)[0])
    assert "in_proj_weight_packed_2" in dict(ours.named_buffers())
    after = ours.state_dict()
    assert all(torch.equal(after[k], v) for k, v in state.items())
    args = inputs("three", True)
    expected = ours(*args)[0]
    assert torch.equal(copy.deepcopy(ours)(*args)[0], expected)
    ours.load_state_dict(state)
    assert torch.equal(ours(*args)[0], expected)
    assert torch.equal(ours.in_proj_weight, stock.in_proj_weight)


def test_the_same_errors() -> None:
    with int8.kernels():
        ours, stock = pair(batch_first=True)
        x = torch.randn(2, 3, EMBED, requires_grad=True)
        sizes = ((3, 2), (1, 6), (1, 3), (2, 4), (6,))
        paddings = [torch.zeros(size, dtype=torch.bool) for size in sizes]
        torch.set_grad_enabled(True)  # the fast path of stock's checks nothing
        for args, options in (
            ((x, x, x), {"is_causal": True, "need_weights": False}),
            ((x, x, x), {"attn_mask": torch.zeros(3, 4)}),
            ((x, x, x[:, :2]), {}),
            ((x[..., :4], x[..., :4], x[..., :4]), {}),
            *(((x, x, x), {"key_padding_mask": mask}) for mask in paddings),
            ((x[0], x[0], x[0]), {"key_padding_mask": torch.zeros(4)}),
        ):
            with pytest.raises((RuntimeError, AssertionError)) as expected:
                stock(*args, **options)
            with pytest.raises(type(expected.value)):
                ours(*args, **options)


def test_what_stays_float() -> None:
    for options, why in (
        ({"kdim": 8}, "sizes of their own"),
        ({"add_bias_kv": True}, "bias_kv"),
        ({"add_zero_attn": True}, "zero attention"),
    ):
        attention = nn.MultiheadAttention(EMBED, HEADS, **options)
        model = nn.ModuleList([attention, nn.Linear(4, 4)])
        ptac.quantize_model(model, method="int8")
        layers = ptac.quantization_report(model).as_dict()["layers"]
        reasons = {layer["name"]: layer["reason"] for layer in layers}
        assert why in reasons["0"]
        assert reasons["0.out_proj"] == "its attention stays float"
        assert type(attention) is nn.MultiheadAttention


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoders_call_their_layers(norm_first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(
        *(EMBED, HEADS, 32, 0.1, activation),
        batch_first=True,
        norm_first=norm_first,
    )
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first).eval()
    x = torch.randn(BATCH, SOURCES, EMBED)
    padding = torch.zeros(BATCH, SOURCES).bool()
    padding[1, 5:] = padding[2, 3:] = True
    expected = model(x), model(x, src_key_padding_mask=padding)
    with int8.kernels() as made:
        ptac.quantize_model(model, method="int8")
        made.clear()
        ours = model(x), model(x, src_key_padding_mask=padding)
        assert len(made) == 2 * 2 * 4
        assert int8.sqnr_db(expected[0], ours[0]) > 30
        kept = ~padding
        assert int8.sqnr_db(expected[1][kept], ours[1][kept]) > 30
        again = copy.deepcopy(model)
        ptac.dequantize_model(again)
        assert again.layers[0].activation_relu_or_gelu == (activation == "gelu") + 1
        assert again.use_nested_tensor is not norm_first
        assert "_before_int8" not in vars(again)
        assert int8.sqnr_db(again(x), ours[0]) > 30
    assert int8.sqnr_db(expected[0], model(x)) > 30


def test_an_encoder_layer_with_one_int8_layer() -> None:
    layer = nn.TransformerEncoderLayer(EMBED, HEADS, 32, batch_first=True).eval()
    x = torch.randn(BATCH, SOURCES, EMBED)
    expected = layer(x)
    with int8.kernels() as made:
        ptac.quantize_model(layer, method="int8", include=["linear1"])
        made.clear()
        ours = layer(x)
        assert made == ["int8_linear"]
        assert int8.sqnr_db(expected, ours) > 35


def test_transformer_and_decoder() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(EMBED, HEADS, 2, 2, 32, batch_first=True).eval()
    source, target = torch.randn(2, 6, EMBED), torch.randn(2, 5, EMBED)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    expected = model(source, target, tgt_mask=mask, tgt_is_causal=True)
    with int8.kernels() as made:
        ptac.quantize_model(model, method="int8")
        ours = model(source, target, tgt_mask=mask, tgt_is_causal=True)
        assert len(made) == 2 * 4 + 2 * (2 + 3 + 2)
        assert int8.sqnr_db(expected, ours) > 28
        ptac.dequantize_model(model)
        again = model(source, target, tgt_mask=mask, tgt_is_causal=True)
        assert int8.sqnr_db(expected, again) > 28


def test_nested_tensors_run_dequantized() -> None:
    with int8.kernels():
        ours, stock = pair(batch_first=True)
        x = torch.nested.nested_tensor([torch.randn(3, EMBED), torch.randn(5, EMBED)])
        a, b = (
            stock(x, x, x, need_weights=False)[0],
            ours(x, x, x, need_weights=False)[0],
        )
        for one, other in zip(a.unbind(), b.unbind(), strict=True):
            torch.testing.assert_close(one, other)


def test_dropout_in_training_only() -> None:
    with int8.kernels():
        ours, _ = pair(batch_first=True, dropout=0.5)
        x = torch.randn(2, 3, EMBED)
        assert torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
        with pytest.warns(UserWarning, match="do not train"):
            ours.train()
        assert not torch.equal(ours(x, x, x)[0], ours(x, x, x)[0])
        a = ours(x, x, x, need_weights=False)[0]
        assert not torch.equal(a, ours(x, x, x, need_weights=False)[0])
