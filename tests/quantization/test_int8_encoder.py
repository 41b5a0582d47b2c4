"""int8_sublayer, and layers of transformers that run by it."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import int8
import pytest
import switching
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc import _C
from pai_torchacc.quantization import operators, quantizer
from pai_torchacc.quantization.transformer.encoder import Int8EncoderLayer

WIDTH, HEADS, INNER, BATCH, LENGTH = 32, 4, 72, 3, 11
OP = "int8_sublayer"


@pytest.fixture(autouse=True)
def switched_on() -> Iterator[None]:
    """The kernels are on and serve every call, gradients are off."""
    with ptac.enable_model_quantization() as handle, torch.no_grad():
        assert handle, handle.reason
        with switching.pins([OP]):
            yield
    ptac.disable()


def layer(**options: Any) -> nn.TransformerEncoderLayer:
    """A float layer with norms and biases that are not those of the start."""
    torch.manual_seed(0)
    options = {"batch_first": True, **options}
    made = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **options).eval()
    for name, parameter in made.named_parameters():
        if "bias" in name or "norm" in name:
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return made


def quantized(stock: nn.Module, **options: Any) -> Any:
    return ptac.quantize_model(copy.deepcopy(stock), method="int8", **options)


def inputs(batch_first: bool = True) -> Tensor:
    sizes = (BATCH, LENGTH) if batch_first else (LENGTH, BATCH)
    return torch.randn(*sizes, WIDTH, generator=torch.Generator().manual_seed(1))


def stepwise(model: Any, *args: Any, **options: Any) -> Tensor:
    """What the same int8 layers give when each is called."""
    kernel = operators.kernels.pop(OP)
    try:
        return model(*args, **options)
    finally:
        operators.kernels[OP] = kernel


PADDING = torch.arange(LENGTH)[None, :] >= torch.tensor([LENGTH, 7, 4])[:, None]
CAUSAL = torch.ones(LENGTH, LENGTH).triu(1).bool()
MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "padding": {"src_key_padding_mask": PADDING},
    "causal": {"src_mask": CAUSAL, "is_causal": True},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


# Layers.


@pytest.mark.parametrize("masking", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_a_layer_is_as_good_as_its_layers(
    masking: str, norm_first: bool, activation: str, batch_first: bool
) -> None:
    stock = layer(norm_first=norm_first, activation=activation, batch_first=batch_first)
    ours, x, masks = quantized(stock), inputs(batch_first), MASKS[masking]
    assert type(ours) is Int8EncoderLayer
    truth = copy.deepcopy(stock).double()(x.double(), **masks)
    before = stepwise(ours, x, **masks)
    hits = switching.hits(OP)
    y = ours(x, **masks)
    assert (hits.accelerated, hits.forwarded) == (2 + norm_first, {}), hits
    if "padding" in str(masks):
        kept = ~PADDING if batch_first else ~PADDING.t()
        truth, before, y = truth[kept], before[kept], y[kept]
    assert y.shape == before.shape and y.is_contiguous()
    assert int8.sqnr_db(truth, y) > int8.sqnr_db(truth, before) - 1
    assert int8.sqnr_db(truth, y) > 35


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), F.relu, F.gelu])
def test_activations_of_other_kinds(activation: Any) -> None:
    ours = quantized(layer(activation=activation))
    hits = switching.hits(OP)
    y = ours(inputs())
    assert hits.accelerated == 2, hits
    assert int8.sqnr_db(stepwise(ours, inputs()), y) > 40


@pytest.mark.parametrize("activation", [nn.GELU("tanh"), nn.SiLU(), torch.tanh])
def test_other_activations_are_called(activation: Any) -> None:
    ours = quantized(layer(activation=activation))
    hits = switching.hits(OP)
    assert torch.equal(ours(inputs()), stepwise(ours, inputs()))
    assert hits.accelerated == 0, hits


def test_without_biases_and_weights_of_norms() -> None:
    for stock in (layer(bias=False), layer()):
        if stock.norm1.bias is not None:
            stock.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False).eval()
        ours = quantized(stock)
        hits = switching.hits(OP)
        y = ours(inputs())
        assert hits.accelerated == 2, hits
        assert int8.sqnr_db(stepwise(ours, inputs()), y) > 40


def test_inputs_with_gaps() -> None:
    ours, x = quantized(layer()), inputs()
    wide = torch.cat((x, x), 2)[..., :WIDTH]
    expected = ours(x)
    hits = switching.hits(OP)
    assert torch.equal(ours(wide), expected)
    same = x[:1].expand(BATCH, -1, -1)
    assert torch.equal(ours(same)[2], ours(same.contiguous())[0])
    assert hits.accelerated == 6, hits


def test_a_row_does_not_depend_on_its_batch() -> None:
    ours, x = quantized(layer()), inputs()
    torch.testing.assert_close(ours(x)[1:2], ours(x[1:2]), rtol=1e-2, atol=1e-2)


def test_what_is_not_finite_stays_in_its_sequence() -> None:
    ours, x = quantized(layer()), inputs()
    expected = ours(x)
    for bad in (float("nan"), float("inf")):
        broken = x.clone()
        broken[1, 2, 3] = bad
        y = ours(broken)
        assert y[1].isnan().all() or y[1, 2].isnan().all()
        assert torch.equal(y[[0, 2]], expected[[0, 2]])


def test_an_encoder_of_several_layers() -> None:
    stock = nn.TransformerEncoder(layer(), 3, enable_nested_tensor=False).eval()
    ours = quantized(stock)
    hits, products = switching.hits(OP), switching.hits("int8_linear")
    y = ours(inputs(), src_key_padding_mask=PADDING)
    assert (hits.accelerated, products.accelerated) == (6, 3), hits
    truth = stock(inputs(), src_key_padding_mask=PADDING)
    assert int8.sqnr_db(truth[~PADDING], y[~PADDING]) > 30


def test_beside_operator_fusion() -> None:
    ours, x = quantized(layer(norm_first=True)), inputs()
    expected = ours(x)
    with ptac.enable_operator_fusion():
        hits = switching.hits(OP)
        y = ours(x, src_key_padding_mask=PADDING)
        assert hits.accelerated == 3, hits
        assert int8.sqnr_db(expected[0], y[0]) > 35


# What is called as ever.


def test_hooks_are_called() -> None:
    ours, x = quantized(layer()), inputs()
    names = ("self_attn", "linear1", "norm2", "dropout")
    for name in names:
        seen = []
        hook = ours.get_submodule(name).register_forward_hook(
            lambda *_, seen=seen: seen.append(1)
        )
        hits = switching.hits(OP)
        y = ours(x)
        hook.remove()
        assert seen == [1] and hits.accelerated == 0, name
        assert torch.equal(y, stepwise(ours, x))
    seen = []
    hook = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: seen.append(type(module))
    )
    ours(x)
    hook.remove()
    assert nn.LayerNorm in seen
    ours.norm1.forward = lambda x: x * 0
    hits = switching.hits(OP)
    ours(x)
    assert hits.accelerated == 0


def test_what_others_patch_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, calls = quantized(layer()), []
    own = nn.LayerNorm.forward

    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        calls.append(self)
        return own(self, x)

    monkeypatch.setattr(nn.LayerNorm, "forward", forward)
    ours(inputs())
    assert calls == [ours.norm1, ours.norm2]


def test_gradients_reach_inputs_and_biases() -> None:
    ours = quantized(layer())
    with torch.enable_grad():
        x = inputs().requires_grad_()
        ours(x).sum().backward()
    assert x.grad is not None and ours.linear1.bias.grad is not None
    assert ours.norm1.weight.grad is not None


def test_calls_that_are_stock_s() -> None:
    ours, x = quantized(layer()), inputs()
    hits = switching.hits(OP)
    assert ours(x[0]).shape == (LENGTH, WIDTH)
    assert ours(x[:0]).shape == (0, LENGTH, WIDTH)
    assert ours(x[:1, :1]).shape == (1, 1, WIDTH)
    assert hits.accelerated == 0, hits
    with pytest.raises(RuntimeError):
        ours(x.double())
    with torch.autocast("cpu"):
        ours(x)
    with pytest.warns(UserWarning, match="do not train"):
        ours.train()
    assert not torch.equal(ours(x), ours(x))
    assert hits.accelerated == 0, hits


def test_transforms_run_step_by_step() -> None:
    ours, x = quantized(layer()), inputs()
    y = torch.func.vmap(ours, randomness="error")(x[:, None])
    assert y.shape == (BATCH, 1, LENGTH, WIDTH)
    assert int8.sqnr_db(ours(x), y[:, 0]) > 30


def test_masks_that_do_not_fit() -> None:
    ours = quantized(layer())
    for masks in (
        {"src_key_padding_mask": PADDING[:, 1:]},
        {"src_mask": CAUSAL[1:]},
    ):
        with pytest.raises((RuntimeError, AssertionError)) as expected:
            stepwise(ours, inputs(), **masks)
        with pytest.raises(type(expected.value)):
            ours(inputs(), **masks)


# The class.


def test_the_class_comes_and_goes() -> None:
    stock = layer()
    ours = quantized(stock, keep_master=True)
    assert isinstance(ours, nn.TransformerEncoderLayer)
    again = pickle.loads(pickle.dumps(ours))
    stream = io.BytesIO()
    torch.save(ours, stream)
    stream.seek(0)
    x, expected = inputs(), ours(inputs())
    for model in (copy.deepcopy(ours), again, torch.load(stream, weights_only=False)):
        assert type(model) is Int8EncoderLayer
        assert torch.equal(model(x), expected)
    before = stock(x)
    ptac.dequantize_model(ours)
    assert type(ours) is nn.TransformerEncoderLayer
    assert torch.equal(ours(x), before)
    partly = quantized(stock, exclude=["linear2"])
    assert type(partly) is nn.TransformerEncoderLayer


def test_off_it_runs_dequantized() -> None:
    stock, x = layer(), inputs()
    ours = quantized(stock)
    hits = switching.hits(OP)
    ptac.disable()
    y = ours(x)
    assert hits.accelerated == 0
    assert int8.sqnr_db(stock(x), y) > 35
    ptac.enable_model_quantization(), ours(x)
    assert hits.accelerated == 2, hits


def test_excluded_by_name() -> None:
    ours = quantized(layer())
    with ptac.enable("model_quantization", exclude=[OP]):
        hits = switching.hits(OP)
        y = ours(inputs())
        assert hits.accelerated == 0
        assert torch.equal(y, stepwise(ours, inputs()))


def test_the_switch_turns_while_threads_run() -> None:
    ours, x = quantized(layer()), inputs()
    expected = ours(x)
    stop, wrong = threading.Event(), []

    def run() -> None:
        with torch.no_grad():
            while not stop.is_set():
                if int8.sqnr_db(expected, ours(x)) < 30:
                    wrong.append(1)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        ptac.disable()
        ptac.enable_model_quantization()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


# The operator.


def weights(n: int, k: int) -> tuple[Any, ...]:
    """Packed, scale, bias, and the dequantized weight in double."""
    weight, bias = torch.randn(n, k) / k**0.5, torch.randn(n) * 0.1
    plain, scale, _, _ = _C.int8_quantize(weight)
    whole = quantizer.dequantize(plain, scale).double()
    return _C.int8_pack(plain, 1), scale, bias, whole


def rounded(x: Tensor) -> Tensor:
    """Rows as their bytes say."""
    q, scale, zero = int8.quantized_rows(x.float(), 255)
    return (q - zero[:, None]) * scale[:, None].double()


def arguments(
    activation: int, place: int, m: int = 150
) -> tuple[tuple[Any, ...], Tensor]:
    """Arguments of a call, and its result by definition, in double."""
    torch.manual_seed(3)
    first, second = weights(INNER, WIDTH), weights(WIDTH, INNER)
    x, residual = torch.randn(m, WIDTH), torch.randn(m, WIDTH)
    norm = (
        (torch.randn(WIDTH), torch.randn(WIDTH), 1e-5) if place else (None, None, 0.0)
    )

    def normed(x: Tensor) -> Tensor:
        return F.layer_norm(x, (WIDTH,), norm[0].double(), norm[1].double(), norm[2])

    h = normed(x.double()) if place == 1 else x
    h = rounded(h) @ first[3].t() + first[2]
    h = (h, h.relu(), F.gelu(h))[activation]
    y = rounded(h) @ second[3].t() + second[2] + residual
    y = normed(y) if place == 2 else y
    rest = (*second[:3], WIDTH, residual, *norm, place)
    return (x, *first[:3], INNER, WIDTH, activation, *rest), y


@pytest.mark.parametrize("activation", range(3))
@pytest.mark.parametrize("place", range(3))
def test_by_definition_and_alike_in_all_rows(activation: int, place: int) -> None:
    args, expected = arguments(activation, place)
    results = []
    for row in switching.runnable_rows(OP):
        _C.pin(OP, row)
        for n_threads in (1, 2):
            torch.set_num_threads(n_threads)
            hits = switching.hits(OP)
            results.append(_C.int8_sublayer(*args))
            assert hits.accelerated == 1, (row, hits)
    assert all(torch.equal(results[0], other) for other in results)
    # A value at the edge of two bytes may become the other one.
    assert int8.sqnr_db(expected, results[0]) > 60


def test_what_the_operator_refuses() -> None:
    args, _ = arguments(1, 2)
    y = _C.int8_sublayer(*args)
    wrong = {
        "double": (0, args[0].double(), "dtype"),
        "a narrow x": (0, args[0][:, 1:], "shape"),
        "no rows": (0, args[0][:0], "layout"),
        "an activation": (6, 3, "argument"),
        "a norm": (15, 3, "argument"),
        "other sizes": (4, INNER + 16, "argument"),
        "huge sizes": (10, 2**62, "argument"),
        "a short residual": (11, args[11][1:], "layout"),
        "a norm in double": (12, args[12].double(), "dtype"),
        "a subclass": (0, nn.Parameter(args[0]).as_subclass(Other), "tensor subclass"),
    }
    for what, (at, value, reason) in wrong.items():
        hits = switching.hits(OP)
        assert _C.int8_sublayer(*args[:at], value, *args[at + 1 :]) is None, what
        assert hits.forwarded == {reason: 1}, (what, hits)
    with pytest.raises(TypeError):
        _C.int8_sublayer(*args[:-1])
    with torch.enable_grad():
        hits = switching.hits(OP)
        assert torch.equal(_C.int8_sublayer(*args), y)
        args[0].requires_grad_()
        assert _C.int8_sublayer(*args) is None
        assert hits.forwarded == {"gradient not supported": 1}, hits


class Other(Tensor):
    pass


def test_without_a_place_in_the_table_layers_are_called() -> None:
    ours, x = quantized(layer()), inputs()
    _C.pin(OP, None)
    hits = switching.hits(OP)
    y = ours(x)
    if hits.accelerated:
        pytest.skip("this machine's table has such small sublayers")
    assert torch.equal(y, stepwise(ours, x))
    assert hits.forwarded == {"not measured faster": 2}, hits
