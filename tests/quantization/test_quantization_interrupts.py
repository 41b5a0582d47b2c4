"""Interrupts at each moment: a model is as before or quantized, the process known."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import int8
import interrupting
import pytest
import torch
from torch import nn

import pai_torchacc as ptac
from pai_torchacc import _C, quantization
from pai_torchacc.quantization import operators, selection, training

NAME = "model_quantization"
LOADERS = (nn.Linear, nn.Conv2d, nn.Embedding, nn.MultiheadAttention)


@pytest.fixture(autouse=True)
def off_at_the_end() -> Iterator[None]:
    with torch.no_grad():
        yield
    ptac.disable()


def check_switch() -> None:
    """What the status says is so."""
    is_on = ptac.is_enabled(NAME)
    patched = ["_load_from_state_dict" in vars(cls) for cls in LOADERS]
    assert patched == [is_on] * len(LOADERS)
    assert not operators.kernels or is_on
    assert (len(quantization._ledger) > 0) == is_on


CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "enable": (ptac.disable, ptac.enable_model_quantization),
    "disable": (ptac.enable_model_quantization, ptac.disable_model_quantization),
}


@pytest.mark.parametrize("change", CHANGES)
def test_switching(change: str) -> None:
    before, switch = CHANGES[change]
    for k in itertools.count(1, 37):
        ptac.disable()
        before()
        if not interrupting.interrupted(switch, k):
            break
        check_switch()
        ptac.disable()
        check_switch()
        assert ptac.enable_model_quantization()
    assert k > 10
    ptac.disable()
    assert training._registered == []
    assert not _C.override_installed()


def model_of(name: str) -> tuple[nn.Module, Any]:
    make, x = int8.MODELS[name]
    return make(), x


def states() -> dict[str, Callable[[nn.Module, Any], object]]:
    saved = int8.file_of(ptac.quantize_model(int8.language_model(), method="int8"))
    return {
        "quantize": lambda m, x: ptac.quantize_model(m, method="int8"),
        "with a sample": lambda m, x: ptac.quantize_model(m, x, method="int8"),
        "load": lambda m, x: ptac.load_quantized(m, io.BytesIO(saved)),
    }


STEP = 29
"""Every so many moments, from another one on each time: there are thousands."""


@pytest.mark.parametrize("way", ["quantize", "with a sample", "load"])
def test_a_model_is_as_before_or_done(way: str) -> None:
    change = states()[way]
    seen = set()
    for k in itertools.count(1, STEP):
        model, x = model_of("tied")
        stock = model(x)
        parameters = list(model.parameters())
        flags = [m.training for m in model.modules()]
        is_over = not interrupting.interrupted(partial(change, model, x), k)
        check_switch()
        n_int8 = len(list(selection.quantized_modules(model)))
        seen.add(n_int8)
        assert not [h for m in model.modules() for h in m._forward_hooks]
        assert [m.training for m in model.modules()] == flags
        if n_int8 == 0:
            assert all(
                a is b for a, b in zip(model.parameters(), parameters, strict=True)
            )
            assert way == "load" or torch.equal(model(x), stock)
        ours = model(x)
        assert int8.sqnr_db(stock, ours) > 25
        if is_over:
            break
    assert seen == {0, n_int8}
    assert n_int8 == 10


def test_dequantizing_can_be_finished() -> None:
    for k in itertools.count(1, STEP):
        model, x = model_of("tied")
        stock = model(x)
        ptac.quantize_model(model, method="int8", keep_master=True)
        is_over = not interrupting.interrupted(partial(ptac.dequantize_model, model), k)
        assert int8.sqnr_db(stock, model(x)) > 25
        ptac.dequantize_model(model)
        assert torch.equal(model(x), stock)
        assert model.head.weight is model.embedding.weight
        if is_over:
            break
    assert k > STEP
