"""Models made int8 in place: the same objects, right numbers, and the way back."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import int8
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import conversion, operators, quantizer, selection
from pai_torchacc.quantization.layers import Int8Conv2d, Int8Embedding, Int8Linear

NAME = "model_quantization"


@pytest.fixture
def reference() -> Iterator[list[str]]:
    with int8.kernels() as made, torch.no_grad():
        yield made


@pytest.fixture(params=int8.MODELS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, x = int8.MODELS[request.param]
    return make(), x


def everything_off() -> None:
    ptac.disable()


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    yield
    everything_off()


def test_the_same_object_with_other_weights(
    reference: list[str], case: tuple[nn.Module, Tensor]
) -> None:
    model, x = case
    modules = dict(model.named_modules())
    classes = {name: type(m) for name, m in modules.items()}
    stock = model(x)
    assert ptac.quantize_model(model, method="int8") is model
    assert dict(model.named_modules()) == modules
    assert all(isinstance(m, classes[name]) for name, m in modules.items())
    ours = model(x)
    assert reference, "no int8 kernel ran"
    assert 30 < int8.sqnr_db(stock, ours) < 80
    assert "int8" in repr(model)
    layers = ptac.quantization_report(model).as_dict()["layers"]
    assert all(layer["state"] == "int8" for layer in layers)


def test_weights_are_readable_copies(reference: list[str]) -> None:
    model = int8.mlp()
    before = model[0].weight.detach().clone()
    ptac.quantize_model(model, method="int8")
    weight, plain = model[0].weight, model[0].weight_int8
    scale = model[0].weight_scale
    assert (weight.dtype, plain.dtype, scale.dtype) == (
        *(torch.float32, torch.int8),
        torch.float32,
    )
    assert torch.equal(weight, plain.float() * scale[:, None])
    assert bool(((weight - before).abs() <= scale[:, None] / 2 * 1.0001).all())
    weight.zero_()
    assert torch.equal(model[0].weight, plain.float() * scale[:, None])
    for value in (nn.Parameter(weight), weight):
        with pytest.raises(AttributeError, match="dequantize_model"):
            model[0].weight = value
    with pytest.raises(RuntimeError, match="dequantize_model"):
        model[0].reset_parameters()
    names = [name for name, _ in model.named_parameters()]
    assert names == ["0.bias", "2.bias", "4.bias"]
    assert {"0.weight_packed", "0.weight_scale"} <= dict(model.named_buffers()).keys()


def test_hooks_and_names_survive(reference: list[str]) -> None:
    model = int8.mlp()
    seen: list[str] = []
    model[0].register_forward_hook(lambda *_: seen.append("forward"))
    model[2].register_forward_pre_hook(lambda *_: seen.append("before"))
    layer = model[2]
    ptac.quantize_model(model, int8.ROWS, method="int8")
    seen.clear()
    model(int8.ROWS)
    assert seen == ["forward", "before"]
    assert model[2] is layer
    ptac.dequantize_model(model)
    assert type(layer) is nn.Linear
    model(int8.ROWS)
    assert seen == ["forward", "before"] * 2


def test_the_sample_leaves_no_trace(reference: list[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    model[2].eval()
    before = {k: v.clone() for k, v in model[1].state_dict().items()}
    state = torch.get_rng_state()
    ptac.quantize_model(model, torch.randn(8, 4), method="int8")
    assert [m.training for m in model.modules()] == [True, True, True, False]
    assert all(torch.equal(v, before[k]) for k, v in model[1].state_dict().items())
    torch.set_rng_state(state)
    hooks = [h for m in model.modules() for h in m._forward_hooks]
    assert hooks == []


def test_random_state_is_put_back(reference: list[str]) -> None:
    class Noisy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + torch.randn(1) * 0

    model = nn.Sequential(nn.Linear(4, 4), Noisy(4, 4))
    x = torch.randn(8, 4)
    state = torch.get_rng_state()
    ptac.quantize_model(model, x, method="int8")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("keep_master", [False, True])
def test_there_and_back(
    reference: list[str], case: tuple[nn.Module, Tensor], keep_master: bool
) -> None:
    model, x = case
    parameters = dict(model.named_parameters())
    state = {k: v.clone() for k, v in model.state_dict().items()}
    stock = model(x)
    ptac.quantize_model(model, method="int8", keep_master=keep_master)
    said = ptac.quantization_report(model).as_dict()["undo"]
    assert said == ("bit-exact" if keep_master else "dequantized")
    dequantized = {
        n: m.weight for n, m in selection.quantized_modules(model) if n == "head"
    }
    assert ptac.dequantize_model(model) is model
    assert list(dict(model.named_parameters())) == list(parameters)
    assert list(model.state_dict()) == list(state)
    assert not list(selection.quantized_modules(model))
    if keep_master:
        assert all(p is parameters[n] for n, p in model.named_parameters())
        assert torch.equal(model(x), stock)
    else:
        assert all(
            torch.equal(model.get_submodule(n).weight, w)
            for n, w in dequantized.items()
        )
        assert int8.sqnr_db(stock, model(x)) > 30
    assert all(m.requires_grad for m in model.parameters())
    ptac.dequantize_model(model)


def test_twice_is_once(reference: list[str]) -> None:
    model = int8.mlp()
    ptac.quantize_model(model, method="int8")
    packed = model[0].weight_packed
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ptac.quantize_model(model, method="int8")
    assert model[0].weight_packed is packed
    with pytest.warns(UserWarning, match="quantized already"):
        ptac.quantize_model(model, method="weight_only")
    assert model[0].weight_packed is packed


def test_off_is_dequantized_and_on_again(reference: list[str]) -> None:
    model = int8.conv_net()
    ptac.quantize_model(model, method="int8")
    ptac.disable_model_quantization()
    assert not ptac.is_enabled(NAME)
    reference.clear()
    off = model(int8.IMAGES)
    assert reference == []
    ptac.dequantize_model(model)
    assert torch.equal(off, model(int8.IMAGES))


def test_quantize_model_switches_on_and_disable_switches_off() -> None:
    model = int8.mlp()
    assert not ptac.is_enabled(NAME)
    own = [vars(c).get("_load_from_state_dict") for c in (nn.Linear, nn.Embedding)]
    ptac.quantize_model(model, method="int8")
    assert ptac.is_enabled(NAME)
    assert "_load_from_state_dict" in vars(nn.Linear)
    ptac.disable()
    assert not ptac.is_enabled(NAME)
    after = [vars(c).get("_load_from_state_dict") for c in (nn.Linear, nn.Embedding)]
    assert after == own
    assert operators.kernels == {}


def test_bare_enable_leaves_it_off() -> None:
    with ptac.enable():
        assert not ptac.is_enabled(NAME)
    with ptac.enable_model_quantization(), ptac.enable():
        assert ptac.is_enabled(NAME)


@pytest.mark.parametrize(
    ("training", "error"), [("fp8", ValueError), (True, TypeError)]
)
def test_training_is_checked(training: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="training"):
        ptac.enable_model_quantization(training=training)
    assert not ptac.is_enabled(NAME)


def copies(model: nn.Module) -> dict[str, nn.Module]:
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "torch.save": torch.load(stream, weights_only=False),
        "moved": copy.deepcopy(model).to("cpu"),
        "shared": copy.deepcopy(model).share_memory(),
    }


def test_copies_compute_alike(
    reference: list[str], case: tuple[nn.Module, Tensor]
) -> None:
    model, x = case
    ptac.quantize_model(model, method="int8")
    ours = model(x)
    for name, other in copies(model).items():
        assert torch.equal(other(x), ours), name
        assert other.state_dict().keys() == model.state_dict().keys()
        tied = getattr(other, "head", None), getattr(other, "embedding", None)
        if None not in tied:
            assert tied[0].weight_int8.equal(tied[1].weight_int8)
            state = other.state_dict()
            a, b = state["head.weight_int8"], state["embedding.weight_int8"]
            assert a.data_ptr() == b.data_ptr(), name
        ptac.dequantize_model(other)
        assert list(selection.quantized_modules(model))
        if None not in tied:
            assert tied[0].weight is tied[1].weight, name


def in_child(index: int, model: nn.Module, x: Tensor, results: Any) -> None:
    with torch.no_grad():
        results.put(model(x).tolist())


@pytest.mark.parametrize("strategy", ["file_descriptor", "file_system"])
def test_a_child_process_gets_the_model(strategy: str) -> None:
    """Started afresh, with the weights in shared memory."""
    make, x = int8.MODELS["mlp"]
    model = ptac.quantize_model(make(), method="int8")
    ptac.disable()
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy(strategy)
    try:
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        torch.multiprocessing.spawn(in_child, (model, x, results), 1)
        with torch.no_grad():
            torch.testing.assert_close(torch.tensor(results.get()), model(x))
    finally:
        torch.multiprocessing.set_sharing_strategy(before)


def test_a_shallow_copy_shares(reference: list[str]) -> None:
    layer = nn.Linear(4, 3)
    ptac.quantize_model(layer, method="int8")
    other = copy.copy(layer)
    assert other.weight_packed is layer.weight_packed
    x = torch.randn(2, 4)
    assert torch.equal(other(x), layer(x))


def test_no_packed_layout_leaves_the_process(reference: list[str]) -> None:
    model = int8.language_model()
    ptac.quantize_model(model, method="int8")
    assert not [k for k in model.state_dict() if "packed" in k]
    for name, module in selection.quantized_modules(model):
        state = module.__getstate__()["_buffers"]
        assert not [k for k in state if "packed" in k], name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_follow_but_for_int8_and_scales(
    reference: list[str], dtype: torch.dtype
) -> None:
    model = int8.mlp()
    ptac.quantize_model(model, method="int8")
    plain = model[0].weight_int8
    for move in (lambda m: m.to(dtype), lambda m: m.type(dtype)):
        other = move(copy.deepcopy(model))
        assert other[0].weight_scale.dtype == torch.float32
        assert other[0].weight_int8.equal(plain)
        assert other[0].bias.dtype == dtype
        y = other(int8.ROWS.to(dtype))
        assert y.dtype == dtype
        assert int8.sqnr_db(model(int8.ROWS), y.float()) > 25
        ptac.dequantize_model(other)
        assert other[0].weight.dtype == dtype
        assert other(int8.ROWS.to(dtype)).dtype == dtype


@pytest.mark.parametrize("n_calls", range(3))
def test_a_move_that_fails_changes_nothing(n_calls: int) -> None:
    for layer in (nn.Linear(8, 4, bias=False), nn.Embedding(4, 8)):
        ptac.quantize_model(layer, method="int8")
        before, made = dict(layer._buffers), []

        def move(tensor: Tensor, made: list[Tensor] = made) -> Tensor:
            if len(made) == n_calls:
                raise MemoryError
            made.append(tensor)
            return tensor.double() if tensor.is_floating_point() else tensor

        with pytest.raises(MemoryError):
            layer._apply(move)
        assert layer._int8.dtype == torch.float32
        assert layer._buffers.keys() == before.keys()
        assert all(layer._buffers[k] is b for k, b in before.items())
        assert layer.state_dict().keys() >= {"weight_int8", "weight_scale"}


def test_meta_and_back(reference: list[str]) -> None:
    model = int8.language_model()
    ptac.quantize_model(model, method="int8")
    ours, state = model(int8.TOKENS), model.state_dict()
    state = {k: v.clone() for k, v in state.items()}
    model.to("meta")
    assert model.head.weight.is_meta
    model.to_empty(device="cpu")
    model.load_state_dict(state)
    assert torch.equal(model(int8.TOKENS), ours)
    other = copy.deepcopy(model).to("meta")
    other.load_state_dict(state, assign=True)
    assert torch.equal(other(int8.TOKENS), ours)


def test_tied_weights_are_one(reference: list[str]) -> None:
    model = int8.language_model()
    ptac.quantize_model(model, method="int8")
    assert isinstance(model.embedding, Int8Embedding)
    assert isinstance(model.head, Int8Linear)
    state = model.state_dict()
    a, b = state["head.weight_int8"], state["embedding.weight_int8"]
    assert a.data_ptr() == b.data_ptr()
    fresh = {k: (v * 0 + 1 if v.dtype == torch.int8 else v) for k, v in state.items()}
    fresh["head.weight_int8"] = fresh["embedding.weight_int8"]
    model.load_state_dict(fresh)
    assert bool((model.head.weight_int8 == 1).all())
    assert bool((model.embedding.weight_int8 == 1).all())
    state = model.state_dict()
    a, b = state["head.weight_int8"], state["embedding.weight_int8"]
    assert a.data_ptr() == b.data_ptr()


def test_two_tied_linears_share_what_is_packed(reference: list[str]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    ptac.quantize_model(model, method="int8")
    assert model[0].weight_packed is model[1].weight_packed
    for other in copies(model).values():
        assert other[0].weight_packed is other[1].weight_packed
    state = model.state_dict()
    assert state["0.weight_int8"] is state["1.weight_int8"]
    ptac.dequantize_model(model)
    assert model[0].weight is model[1].weight


def test_tied_weights_are_read_anew_after_loading(reference: list[str]) -> None:
    """While an older state dict lives, whose tensors were made for both modules."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    ptac.quantize_model(model, method="int8")
    before = model.state_dict()
    old = before["0.weight_int8"].clone()
    others = {k: v * 0 + 1 if "int8" in k else v.clone() for k, v in before.items()}
    model.load_state_dict(others)
    for module in model:
        assert bool((module.weight_int8 == 1).all())
        assert torch.equal(module.weight, module.weight_scale[:, None].expand(8, 8))
    assert bool((model.state_dict()["1.weight_int8"] == 1).all())
    assert torch.equal(before["0.weight_int8"], old)


def test_a_weight_shared_with_others_stays_float() -> None:
    class Own(nn.Module):
        def __init__(self, weight: nn.Parameter):
            super().__init__()
            self.w = weight

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.w.t()

    linear, free = nn.Linear(6, 6), nn.Linear(6, 6)
    model = nn.Sequential(linear, Own(linear.weight), free)
    ptac.quantize_model(model, method="int8")
    assert type(linear) is nn.Linear
    assert isinstance(free, Int8Linear)
    layers = ptac.quantization_report(model).as_dict()["layers"]
    assert [layer["reason"] for layer in layers] == [
        "shared with 1",
        "Own is not supported",
        None,
    ]


def test_an_excluded_layer_takes_its_tied_one_with_it() -> None:
    model = int8.language_model()
    ptac.quantize_model(model, method="int8", exclude=["head"])
    assert type(model.embedding) is nn.Embedding
    assert model.head.weight is model.embedding.weight
    layers = ptac.quantization_report(model).as_dict()["layers"]
    reasons = {layer["name"]: layer["reason"] for layer in layers}
    assert reasons["head"] == "excluded"
    assert reasons["embedding"] == ("shared with head, which stays float (excluded)")


def test_parameters_are_let_go(reference: list[str]) -> None:
    model = int8.mlp()
    held = weakref.ref(model[0].weight)
    ptac.quantize_model(model, int8.ROWS, method="int8")
    gc.collect()
    assert held() is None
    note = weakref.ref(model)
    assert model in conversion.notes
    del model
    gc.collect()
    assert note() is None


def test_a_view_of_stock_numbers(reference: list[str]) -> None:
    """Rows of an embedding are exactly those of its dequantized weight."""
    layer = nn.Embedding(10, 6, padding_idx=2)
    ptac.quantize_model(layer, method="int8")
    indices = torch.tensor([[1, 2], [9, 0]])
    assert torch.equal(layer(indices), F.embedding(indices, layer.weight))
    assert not layer(indices)[0, 1].any()
    with pytest.raises(IndexError):
        ptac.disable()
        layer(torch.tensor([10]))


@pytest.mark.parametrize("bias", [True, False])
def test_doubles_are_refused_as_by_stock(bias: bool) -> None:
    """Where a module is not in float64 itself."""
    for layer, size in (
        (nn.Linear(4, 8, bias=bias), (2, 4)),
        (nn.Conv2d(4, 8, 1, bias=bias), (2, 4, 3, 3)),
    ):
        x, stock = torch.randn(size), copy.deepcopy(layer)
        ptac.quantize_model(layer, method="int8")
        for module in (stock, layer):
            for wants_gradient in (False, True):
                with pytest.raises(RuntimeError, match=r"type|dtype"):
                    module(x.double().requires_grad_(wants_gradient))
        assert layer.double()(x.double()).dtype == torch.float64


def test_without_the_extension_weights_are_the_same() -> None:
    """To the bit: halves, rows of zeros, rows whose inverse is beyond float32."""
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(2000, 37, generator=generator)
    weight *= torch.logspace(-45, 30, 2000)[:, None]
    weight[:4] = torch.tensor([0.0, 2.0**-113, 0.99 * 2.0**-113, 3e38])[:, None]
    weight[4] = torch.arange(37) * 0.5
    weight[4, -1] = 127
    portable, ours = quantizer._quantize(weight), quantizer.quantize(weight)
    assert torch.equal(portable.plain, ours.plain)
    assert torch.equal(portable.scale, ours.scale)
    assert portable.signal == pytest.approx(ours.signal, rel=1e-5)
    # Rows of one number miss by their scale's rounding alone, which no step shows: and
    # in steps AVX-512 counts.
    weight = weight[4:]
    portable, ours = quantizer._quantize(weight), quantizer.quantize(weight)
    assert portable.noise == pytest.approx(ours.noise, rel=1e-3)


def test_unbatched_images(reference: list[str]) -> None:
    layer = nn.Conv2d(3, 4, 3)
    ptac.quantize_model(layer, method="int8")
    assert isinstance(layer, Int8Conv2d)
    image = torch.randn(3, 8, 8)
    assert torch.equal(layer(image), layer(image[None])[0])
    assert reference == ["int8_conv2d"] * 2


def test_verify_holds_int8_to_its_own_bound(monkeypatch: Any) -> None:
    model = int8.mlp()
    with int8.kernels() as made:
        ptac.quantize_model(model, method="int8")
        made.clear()
        found = ptac.verify(model, int8.ROWS)
        assert found and "int8_linear" in made._names(), str(found)
        assert "dB" in str(found)
        right = operators.kernels["int8_linear"]

        def wrong(*args: Any) -> Tensor | None:
            y = right(*args)
            return None if y is None else y * 1.2

        with monkeypatch.context() as patch:  # before the switch is off again
            patch.setitem(operators.kernels, "int8_linear", wrong)
            assert not ptac.verify(model, int8.ROWS, backward=False)
