"""What becomes int8 and why not the rest; the guard; wrong use."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import int8
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import pai_torchacc as ptac
from pai_torchacc.quantization import samples, selection, timing

OFTEN = {"m1": 1, "m2_7": 4, "m8_31": 16, "m32_up": 64}


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    yield
    ptac.disable()


def reasons(model: nn.Module) -> dict[str, str | None]:
    layers = ptac.quantization_report(model).as_dict()["layers"]
    return {layer["name"]: layer["reason"] for layer in layers}


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def weird() -> nn.ModuleDict:
    """One layer of each kind that stays float."""
    patched = nn.Linear(4, 4)
    patched.forward = lambda x: x  # type: ignore[method-assign]
    return nn.ModuleDict(
        {
            "good": nn.Linear(4, 4),
            "subclass": Doubled(4, 4),
            "parametrized": parametrizations.weight_norm(nn.Linear(4, 4)),
            "normed": parametrizations.spectral_norm(nn.Conv2d(2, 2, 3)),
            "pruned": prune.random_unstructured(nn.Linear(4, 4), "weight", 0.5),
            "patched": patched,
            "doubles": nn.Linear(4, 4).double(),
            "halfs": nn.Embedding(4, 4).half(),
            "meta": nn.Linear(4, 4, device="meta"),
            "lazy": nn.LazyLinear(4),
            "empty": nn.Linear(4, 0),
            "long": nn.Linear(70_000, 1),
            "lstm": nn.LSTM(4, 4),
            "max_norm": nn.Embedding(4, 4, max_norm=1.0),
            "reflect": nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
            "uneven": nn.Conv2d(2, 2, 2, padding="same"),
            "transposed": nn.ConvTranspose2d(2, 2, 3),
            "conv1d": nn.Conv1d(2, 2, 3),
            "bag": nn.EmbeddingBag(4, 4),
            "nan": nn.Linear(4, 4),
        }
    )


WHY = {
    "good": None,
    "subclass": "Doubled is a subclass of Linear",
    "parametrized": "parametrized",
    "normed": "parametrized",
    "pruned": "its weight is computed from other tensors",
    "patched": "its forward was replaced by others",
    "doubles": "dtype float64",
    "halfs": "dtype float16",
    "meta": "has no data: it is on the meta device",
    "lazy": "LazyLinear is a subclass of Linear",
    "empty": "empty",
    "long": "sums of more than 65536 products",
    "lstm": "recurrent layers are not supported",
    "max_norm": "max_norm changes the weight",
    "reflect": "padding (1, 1), reflect",
    "uneven": "padding same, zeros",
    "transposed": "ConvTranspose2d is not supported",
    "conv1d": "Conv1d is not supported",
    "bag": "EmbeddingBag is not supported",
    "nan": "NaN or Inf in its weight",
}


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_what_stays_float_and_why() -> None:
    model = weird()
    model["nan"].weight.data[0, 0] = math.nan
    classes = {name: type(m) for name, m in model.items()}
    ptac.quantize_model(model, method="int8")
    found = reasons(model)
    assert {name: found.get(name) for name in WHY} == WHY
    assert {n for n, m in model.items() if type(m) is not classes[n]} == {"good"}
    text = str(ptac.quantization_report(model))
    assert all(why in text for why in WHY.values() if why)


def test_a_parameter_is_on_another_device() -> None:
    model = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    stub = torch.empty(2, 2, device="meta")
    assert selection._weight_trouble(nn.Parameter(stub)) is not None
    ptac.quantize_model(model, method="int8")
    assert list(reasons(model).values()) == [None, None]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exclude": ["0"]}, {"2", "4"}),
        ({"include": ["0", "4"]}, {"0", "4"}),
        ({"include": ["[02]"]}, {"0", "2"}),
        ({"include": [nn.Linear], "exclude": ["2"]}, {"0", "4"}),
        ({"exclude": (nn.Embedding, "4")}, {"0", "2"}),
        ({"include": (n for n in ["2"])}, {"2"}),
    ],
)
def test_include_and_exclude(options: dict[str, Any], expected: set[str]) -> None:
    model = ptac.quantize_model(int8.mlp(), method="int8", **options)
    assert {n for n, m in selection.quantized_modules(model)} == expected


def test_a_prefix_means_what_is_inside() -> None:
    model = int8.language_model()
    ptac.quantize_model(model, method="int8", include=["encoder.layers.1"])
    found = {n for n, _ in selection.quantized_modules(model)}
    assert found == {
        f"encoder.layers.1.{n}"
        for n in ("self_attn", "self_attn.out_proj", "linear1", "linear2")
    }


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"method": "int4"}, ValueError, "auto, int8, fp8, weight_only"),
        ({"method": None}, ValueError, "method"),
        ({"guard": 2}, ValueError, "guard"),
        ({"guard": math.nan}, ValueError, "guard"),
        ({"guard": "0.1"}, TypeError, "guard"),
        ({"guard": True}, TypeError, "guard"),
        ({"keep_master": 1}, TypeError, "keep_master"),
        ({"measure": None}, TypeError, "measure"),
        ({"include": ["nothing"]}, ValueError, "no module 'nothing'"),
        ({"exclude": ["nothing.*"]}, ValueError, "no module"),
        ({"exclude": "0"}, TypeError, "exclude"),
        ({"include": [3]}, TypeError, "include"),
        ({"include": [int]}, TypeError, "include"),
        ({"include": 3}, TypeError, "include"),
        ({"exclude": None}, TypeError, "exclude"),
        ({"sample": 3}, TypeError, "sample"),
        ({"sample": "x"}, TypeError, "sample"),
        ({"sample": []}, ValueError, "sample is empty"),
        ({"dtype": "int4"}, ValueError, "there are: int8, fp8"),
        ({"dtype": "fp8"}, ValueError, "method='int8' is not of dtype='fp8'"),
        ({"sample": iter(())}, ValueError, "sample is empty"),
        ({"sample": torch.randn(3, 3)}, ValueError, "does not take it"),
        ({"sample": {"nope": 1}}, ValueError, "does not take it"),
    ],
)
def test_wrong_use_changes_nothing(
    options: dict[str, Any], error: type[Exception], match: str
) -> None:
    model = int8.mlp()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    parameters = list(model.parameters())
    sample = options.pop("sample", None)
    with pytest.raises(error, match=match):
        ptac.quantize_model(model, sample, **{"method": "int8", **options})
    assert not ptac.is_enabled("model_quantization")
    assert [type(m) for m in model] == [nn.Linear, nn.ReLU] * 2 + [nn.Linear]
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not [h for m in model.modules() for h in m._forward_hooks]


@pytest.mark.parametrize(
    ("model", "error", "match"),
    [
        (None, TypeError, "model is a torch.nn.Module"),
        (nn.ReLU(), ValueError, "no layer that can be int8"),
        (nn.Linear(4, 4).double(), ValueError, "dtype float64"),
        (nn.Sequential(nn.LSTM(2, 2)), ValueError, "recurrent"),
    ],
)
def test_models_without_anything(
    model: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        ptac.quantize_model(model, method="int8")
    assert not ptac.is_enabled("model_quantization")


@pytest.mark.parametrize("function", ["dequantize_model", "quantization_report"])
def test_other_functions_want_models(function: str) -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        getattr(ptac, function)({})


def test_the_table_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    faster: set[str] = set(OFTEN)
    monkeypatch.setattr(selection, "is_faster", lambda op, kind, work: kind in faster)
    model = ptac.quantize_model(nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 10)))
    assert list(reasons(model).values()) == [None, None]
    faster.discard("m1")
    with int8.kernels() as made, torch.no_grad():
        model = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 10))
        ptac.quantize_model(model)
        assert list(reasons(model).values()) == ["not measured faster at 1 row", None]
        for kind, rows in OFTEN.items():
            made.clear()
            model[1](torch.randn(rows, 300))
            assert made == ["int8_linear"] * (kind != "m1")
    faster.clear()
    model = ptac.quantize_model(nn.Sequential(nn.Linear(8, 8)))
    assert reasons(model) == {"0": "not measured faster"}
    assert type(model[0]) is nn.Linear


def test_thin_groups_are_for_the_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "is_faster", lambda *place: True)
    model = nn.ModuleList(
        [nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(32, 32, 3, groups=2)]
    )
    ptac.quantize_model(model)
    assert reasons(model) == {"0": "fewer than 16 channels in a group", "1": None}


def test_weight_only_computes_in_float() -> None:
    with int8.kernels() as made, torch.no_grad():
        model = ptac.quantize_model(int8.mlp(), method="weight_only")
        y = model(int8.ROWS)
        assert made == []
        ptac.dequantize_model(model)
        assert torch.equal(model(int8.ROWS), y)


def test_measured_times_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"m1": (1.0, 2.0), "m2_7": (1.0, 0.5), "m8_31": (1.0, 0.99)}

    def timed(stock: Any, ours: Any, x: Tensor) -> tuple[float, float]:
        kind = {n: k for k, n in OFTEN.items()}[x.shape[0]]
        return times.get(kind, (2.0, 1.0))

    with monkeypatch.context() as patch, int8.kernels():
        patch.setattr(timing, "_timed", timed)
        patch.setattr(selection, "is_faster", lambda *place: False)
        model = ptac.quantize_model(int8.mlp(), measure=True)
        [first, *_] = ptac.quantization_report(model).as_dict()["layers"]
        assert list(first["buckets"].values()) == ["float", "int8", "float", "int8"]
        assert first["measured"]["m1"]["ratio"] == 0.5
        fixed = ptac.quantize_model(int8.mlp(), measure=True, method="int8")
        [first, *_] = ptac.quantization_report(fixed).as_dict()["layers"]
        assert set(first["buckets"].values()) == {"int8"}
    for make, _ in int8.MODELS.values():  # the clock itself
        model = ptac.quantize_model(make(), measure=True, method="int8")
        layers = ptac.quantization_report(model).as_dict()["layers"]
        assert all(layer["measured"] for layer in layers)


@pytest.mark.parametrize(
    "sample",
    [
        int8.ROWS,
        (int8.ROWS,),
        {"input": int8.ROWS},
        [(int8.ROWS,), {"input": int8.ROWS[:2]}],
        iter([int8.ROWS, int8.ROWS[:3]]),
    ],
)
def test_samples_of_every_kind(sample: Any) -> None:
    with int8.kernels():
        model = ptac.quantize_model(int8.mlp(), sample, method="int8")
        content = ptac.quantization_report(model).as_dict()
        assert content["sample"]["agreement"] > 0.9
        assert content["sample"]["output_sqnr_db"] > 35
        assert 0 <= content["sample"]["kl_divergence"] < 1e-3
        assert all(35 < layer["output_sqnr_db"] < 90 for layer in content["layers"])


def test_the_guard_gives_the_worst_layers_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One layer is spoilt: a kernel that is wrong for its shape only."""

    def spoilt(x: Any, packed: Any, scale: Any, bias: Any, n: int, k: int) -> Any:
        y = int8.linear(x, packed, scale, bias, n, k)
        return y if (n, k) != (32, 48) else torch.full_like(y, 3.0).cumsum(1)

    model = int8.mlp()
    parameter = model[2].weight
    with int8.kernels(), torch.no_grad(), monkeypatch.context() as spoiling:
        from pai_torchacc.quantization import operators

        spoiling.setitem(operators.kernels, "int8_linear", spoilt)
        model[2].register_forward_hook(lambda *_: None)  # not run below Python then
        stock = model(int8.ROWS)
        ptac.quantize_model(model, int8.ROWS, method="int8", guard=0.05)
        assert type(model[2]) is nn.Linear
        assert model[2].weight is parameter
        found = reasons(model)
        assert found["2"].startswith("the guard: output SQNR")
        assert (found["0"], found["4"]) == (None, None)
        assert int8.sqnr_db(stock, model(int8.ROWS)) > 30
        wholly = int8.mlp()
        ptac.quantize_model(wholly, int8.ROWS, method="int8", guard=1.0)
        assert reasons(wholly)["2"] is None


def test_without_classes_noise_is_limited() -> None:
    model = nn.Sequential(nn.Linear(20, 1))
    with int8.kernels():
        ptac.quantize_model(model, int8.ROWS, method="int8", guard=0.0)
        assert type(model[0]) is nn.Linear
        ptac.quantize_model(model, int8.ROWS, method="int8", guard=0.01)
        assert type(model[0]) is not nn.Linear
        sample = ptac.quantization_report(model).as_dict()["sample"]
        assert sample["agreement"] is None


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_samples_that_are_not_finite(value: float) -> None:
    """They spread over the whole image, in int8 only; the guard sees it."""
    x = torch.randn(2, 3, 8, 8)
    x[0, 0, 0, 0] = value
    for behind, state in ((nn.Flatten(0), "float"), (nn.ReLU(), "int8")):
        model = nn.Sequential(nn.Conv2d(3, 16, 3), behind)
        ptac.quantize_model(model, x, method="int8", guard=1.0)
        content = ptac.quantization_report(model).as_dict()
        assert content["layers"][0]["state"] == state
        assert (content["sample"]["agreement"] is None) == (state == "float")
    assert samples.Comparison(None, None, -4000.0).badness() > 1


def test_calls_on_the_sample_are_not_in_the_report() -> None:
    ptac.enable()
    ptac.report(reset=True)

    def counted() -> dict[str, Any]:
        ops = json.loads(ptac.report("json"))["ops"]
        return {
            op: (entry["calls"], entry["forwarded"], entry["estimated_ms"])
            for op, entry in ops.items()
            if op not in ("copy", "small_pointwise")  # of weights
        }

    nothing = counted()
    x = torch.randn(2, 3, 12, 12)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3))
    ptac.quantize_model(net, x, method="int8", measure=True)
    assert counted() == nothing
    with torch.no_grad():
        net(x)
    assert counted()["int8_conv2d"][0] == 2
    before = counted()
    ptac.dequantize_model(net)
    ptac.quantize_model(net, x, method="int8")
    assert counted() == before


def test_the_guard_knows_tied_layers() -> None:
    model = int8.language_model()
    with int8.kernels():
        ptac.quantize_model(model, int8.TOKENS, method="int8", guard=0.0)
    kinds = {type(model.head), type(model.embedding)}
    assert kinds in ({nn.Linear, nn.Embedding}, kinds)
    assert (type(model.head) is nn.Linear) == (type(model.embedding) is nn.Embedding)
    if type(model.head) is nn.Linear:
        assert model.head.weight is model.embedding.weight


def test_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    with int8.kernels():
        model = nn.Sequential(nn.Embedding(64, 96), nn.Linear(96, 128), nn.ReLU())
        sample = torch.arange(8)
        model = ptac.quantize_model(model, sample, method="int8")
        report = ptac.quantization_report(model)
        content = json.loads(report.as_json())
        state = model.state_dict()
        n_bytes = sum(t.numel() * t.element_size() for t in state.values())
        assert content["bytes"]["quantized"] == n_bytes
        assert content["bytes"]["float"] == 4 * (64 * 96 + 96 * 128 + 128)
        buffers = (*model.parameters(), *model.buffers())
        n_bytes = sum(t.numel() * t.element_size() for t in buffers)
        assert content["bytes"]["memory"] == n_bytes
        assert content["active"] is True
        assert [layer["kind"] for layer in content["layers"]] == ["Embedding", "Linear"]
        assert all(layer["weight_sqnr_db"] > 40 for layer in content["layers"])
    assert "model_quantization is off" in str(ptac.quantization_report(model))
    float_report = ptac.quantization_report(nn.Linear(2, 2)).as_dict()
    assert float_report["layers"][0]["reason"] == "not quantized"
    assert float_report["undo"] is None


@pytest.mark.filterwarnings("ignore:no layer has become")
def test_a_report_of_none_names_no_format() -> None:
    model = nn.Sequential(nn.Linear(16, 16))
    ptac.quantize_model(model, torch.randn(4, 16), dtype="fp8")  # no gain on a CPU
    assert "0 of 1 layers are quantized" in str(ptac.quantization_report(model))
    assert "Sequential: 0 of 1 layers are quantized" in ptac.report()
