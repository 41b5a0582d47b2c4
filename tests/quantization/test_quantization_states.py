"""Checkpoints of int8 models: every way from one model into another."""

from __future__ import annotations

import copy
import importlib.util
import io
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import int8
import pytest
import switching
import torch
from int8 import CASES, another, quantized
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.quantization import selection


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.no_grad():
        yield
    ptac.disable()


@pytest.mark.parametrize("name", CASES)
def test_names_and_dtypes(name: str) -> None:
    model, _ = quantized(name)
    state = model.state_dict()
    for prefix, module in selection.quantized_modules(model):
        own = f"{prefix}.{module.weight_name}" if prefix else module.weight_name
        assert own not in state
        assert state[f"{own}_int8"].dtype == torch.int8
        assert state[f"{own}_int8"].shape == module._int8.shape
        assert state[f"{own}_scale"].dtype == torch.float32
        record = state[f"{prefix}.quantization" if prefix else "quantization"]
        assert (record.dtype, record.dim()) == (torch.uint8, 1)
        assert b'"version": 1' in bytes(record.tolist())


@pytest.mark.parametrize("name", CASES)
def test_int8_into_int8(name: str) -> None:
    with int8.kernels():
        model, x = quantized(name)
        other = ptac.quantize_model(another(name), method="int8")
        packed = [b for n, b in other.named_buffers() if "packed" in n]
        assert not torch.equal(other(x), model(x))
        result = other.load_state_dict(model.state_dict())
        assert (result.missing_keys, result.unexpected_keys) == ([], [])
        assert torch.equal(other(x), model(x))
        now = [b for n, b in other.named_buffers() if "packed" in n]
        assert all(a is b for a, b in zip(packed, now, strict=True)), "in place"


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_int8_into_float(name: str, assign: bool) -> None:
    model, x = quantized(name)
    other = another(name)
    other.load_state_dict(model.state_dict(), assign=assign)
    assert not list(selection.quantized_modules(other))
    ptac.dequantize_model(model)
    assert torch.equal(other(x), model(x))


@pytest.mark.parametrize("name", CASES)
def test_a_state_holds_weights_of_one_moment(name: str) -> None:
    """Rows and scales go together, whatever the model loads afterwards."""
    with int8.kernels():
        model, _ = quantized(name)
        before = ptac.dequantize_state_dict(copy.deepcopy(model.state_dict()))
        state = model.state_dict()
        model.load_state_dict(another(name).state_dict())
        after, now = map(ptac.dequantize_state_dict, (state, model.state_dict()))
        for prefix, module in selection.quantized_modules(model):
            own = f"{prefix}.{module.weight_name}" if prefix else module.weight_name
            is_packed = f"{module.weight_name}_int8" not in module._buffers
            assert torch.equal(after[own], (before if is_packed else now)[own])


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_float_into_int8(name: str, assign: bool) -> None:
    with int8.kernels():
        stock = int8.MODELS[name][0]()
        other = ptac.quantize_model(another(name), method="int8")
        other.load_state_dict(stock.state_dict(), assign=assign)
        model, x = quantized(name)
        assert torch.equal(other(x), model(x))
        a, b = other.state_dict(), model.state_dict()
        assert list(a) == list(b)
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("name", CASES)
def test_with_the_switch_off_a_float_model_refuses(name: str) -> None:
    model, _ = quantized(name)
    ptac.disable()
    other = another(name)
    before = {k: v.clone() for k, v in other.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\)[^\n]*weight"):
        other.load_state_dict(model.state_dict())
    weights = [k for k in before if k.endswith("weight")]
    assert all(
        torch.equal(other.state_dict()[k], before[k])
        for k in weights
        if "norm" not in k
    )


@pytest.mark.parametrize("name", CASES)
def test_dequantize_state_dict(name: str) -> None:
    model, x = quantized(name)
    state = model.state_dict()
    plain = ptac.dequantize_state_dict(state)
    ptac.disable()
    other = another(name)
    assert list(plain) == list(other.state_dict())
    assert plain._metadata == state._metadata
    other.load_state_dict(plain)
    ptac.dequantize_model(model)
    assert torch.equal(other(x), model(x))
    if name == "tied":
        assert plain["head.weight"] is plain["embedding.weight"]
    again = ptac.dequantize_state_dict(plain)
    assert list(again) == list(plain)
    assert all(again[k] is plain[k] for k in plain)


def test_dequantize_state_dict_of_something_else() -> None:
    with pytest.raises(TypeError, match="state_dict"):
        ptac.dequantize_state_dict([1])
    wrong = {"a.weight_int8": torch.zeros(2, 2), "a.weight_scale": torch.ones(2)}
    with pytest.raises(ValueError, match=r"a\.weight_int8"):
        ptac.dequantize_state_dict(wrong)
    wrong = {
        "weight_int8": torch.zeros(2, 2, dtype=torch.int8),
        "weight_scale": torch.ones(3),
        "quantization": torch.zeros(1, dtype=torch.uint8),
    }
    with pytest.raises(ValueError, match="weight_scale"):
        ptac.dequantize_state_dict(wrong)
    good = {"weight_int8": torch.ones(3, 2, dtype=torch.int8)}
    good["weight_scale"] = torch.ones(3)
    assert torch.equal(ptac.dequantize_state_dict(good)["weight"], torch.ones(3, 2))
    for name, value in (
        *(("weight_scale", value) for value in (torch.nan, torch.inf, -1)),
        ("weight_int8", -128),
    ):
        bad = {**good, name: torch.full_like(good[name], value)}
        with pytest.raises(ValueError, match=name):
            ptac.dequantize_state_dict(bad)
        with int8.kernels(), pytest.raises(RuntimeError, match=name):
            nn.Linear(2, 3, bias=False).load_state_dict(bad)
    assert list(ptac.dequantize_state_dict({"x_int8": 1, 3: 4})) == ["x_int8", 3]


def test_files_of_torch_load_in_a_plain_process(tmp_path: Path) -> None:
    model, x = quantized("tied")
    file, out = tmp_path / "model.pt", tmp_path / "out.pt"
    torch.save(model.state_dict(), file)
    ptac.dequantize_model(model)
    program = f"""
import sys, torch, importlib.util
state = torch.load({str(file)!r}, weights_only=True)
assert not [m for m in sys.modules if m.startswith("pai_torchacc")]
from pai_torchacc import dequantize_state_dict
torch.save(dequantize_state_dict(state), {str(out)!r})
"""
    switching.python(program)
    plain = torch.load(out, weights_only=True)
    other = another("tied")
    ptac.disable()
    other.load_state_dict(plain)
    assert torch.equal(other(x), model(x))


@pytest.mark.skipif(
    importlib.util.find_spec("safetensors") is None, reason="safetensors is not there"
)
@pytest.mark.parametrize("name", CASES)
def test_safetensors(name: str, tmp_path: Path) -> None:
    from safetensors.torch import load_model, save_model

    with int8.kernels():
        model, x = quantized(name)
        save_model(model, str(tmp_path / "model.safetensors"))
        other = ptac.quantize_model(another(name), method="int8")
        load_model(other, str(tmp_path / "model.safetensors"))
        assert torch.equal(other(x), model(x))


def test_a_record_is_loaded_with_its_decisions(monkeypatch: Any) -> None:
    monkeypatch.setattr(selection, "is_faster", lambda op, kind, work: kind != "m1")
    with int8.kernels() as made:
        model = ptac.quantize_model(int8.mlp())
        other = ptac.quantize_model(int8.mlp(), method="int8")
        other.load_state_dict(model.state_dict())
        made.clear()
        other(int8.ROWS[:1])
        assert made == []
        other(int8.ROWS)
        assert made == ["int8_linear"] * 3
        assert "0.weight_float" in dict(other.named_buffers())


def load_errors(model: nn.Module, state: Any, strict: bool = True) -> str:
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(state, strict=strict)
    after = model.state_dict()
    ours = [k for k in before if "int8" in k or "scale" in k or "quantization" in k]
    assert all(torch.equal(before[k], after[k]) for k in ours)
    return str(caught.value)


def test_wrong_checkpoints_say_what_is_wrong() -> None:
    model, _ = quantized("mlp")
    good = OrderedDict((k, v.clone()) for k, v in model.state_dict().items())
    w, s, q = "0.weight_int8", "0.weight_scale", "0.quantization"

    def said(**changes: Any) -> str:
        names = {"w": w, "s": s, "q": q}
        return load_errors(model, {**good, **{names[k]: v for k, v in changes.items()}})

    assert f"size mismatch for {w}" in said(w=good[w][:4])
    assert f"size mismatch for {s}" in said(s=good[s][:4])
    assert "should be torch.int8" in said(w=good[w].float())
    assert "should be torch.float32" in said(s=good[s].double())
    assert "not finite" in said(s=good[s] * torch.nan)
    assert "not finite" in said(s=-good[s])
    assert "below -127" in said(w=torch.full_like(good[w], -128))
    assert "record" in said(q=good[q][:5])
    assert "record" in said(q=good[q].float())
    assert "received" in said(w="text")
    for key in (w, s, q):
        state = {k: v for k, v in good.items() if k != key}
        if key == q:
            with pytest.raises(RuntimeError, match=r'Missing key.*"0.quant'):
                model.load_state_dict(state)
            continue
        assert f'Missing key(s) in state_dict: "{key}"' in load_errors(model, state)
        assert model.load_state_dict(state, strict=False).missing_keys == [key]
    extra = {**good, "0.weight": torch.zeros(48, 20)}
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"0.weight"'):
        model.load_state_dict(extra)
    bad = int8.mlp().state_dict()
    bad["0.weight"][0, 0] = torch.nan
    assert "NaN or Inf" in load_errors(model, bad)


def test_hooks_on_loading_still_rename() -> None:
    model, x = quantized("mlp")
    expected = model(x)
    state = OrderedDict(
        (k.replace("0.weight", "0.old"), v) for k, v in model.state_dict().items()
    )

    def rename(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
        for part in ("int8", "scale"):
            key = f"{prefix}old_{part}"
            if key in state:
                state[f"{prefix}weight_{part}"] = state.pop(key)

    other = ptac.quantize_model(another("mlp"), method="int8")
    handle = other[0].register_load_state_dict_pre_hook(rename)
    other.load_state_dict(state)
    handle.remove()
    assert torch.equal(other(x), expected)


def test_ema_copies_and_swaps(tmp_path: Path) -> None:
    """Torch's own tools that go over state dicts and buffers."""
    model, x = quantized("conv")
    other = copy.deepcopy(model)
    stream = io.BytesIO()
    torch.save(other.state_dict(), stream)
    stream.seek(0)
    other.load_state_dict(torch.load(stream, weights_only=True))
    assert torch.equal(other(x), model(x))
    from torch.nn.utils import parameters_to_vector

    n = parameters_to_vector(model.parameters()).numel()
    assert n == sum(p.numel() for p in model.parameters())


def test_an_attribute_of_the_users_own() -> None:
    """It stays as it is, and a layer that has one stays float."""
    model: Any = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    model._int8, model[1]._int8, model[2]._int8 = "mine", 7, 8
    ptac.quantize_model(model.eval())
    ptac.dequantize_model(model)
    assert (model._int8, model[1]._int8, model[2]._int8) == ("mine", 7, 8)
