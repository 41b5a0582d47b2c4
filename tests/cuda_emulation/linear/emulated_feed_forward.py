"""The feed-forward part of torch's Transformer layers on CUDA."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import linear_layers
import pytest
import torch
import torch.nn.functional as F
from linear_layers import MLP as FORWARD
from linear_layers import MLP_BACKWARD as BACKWARD
from switching import FUSION, hits
from torch import Tensor, nn

import pai_torchacc as ptac

of_any_size = linear_layers.of_any_size


@pytest.fixture(autouse=True)
def without_fast_path() -> Iterator[None]:
    """In eval mode too layers call what they are made of."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def encoder(**options: Any) -> nn.TransformerEncoderLayer:
    options = {"dropout": 0.0, "batch_first": True, **options}
    return nn.TransformerEncoderLayer(8, 2, 16, **options).cuda()


def decoder(**options: Any) -> nn.TransformerDecoderLayer:
    options = {"dropout": 0.0, "batch_first": True, **options}
    return nn.TransformerDecoderLayer(8, 2, 16, **options).cuda()


def gradients(layer: nn.Module) -> list[Tensor]:
    """Results and gradients of a step, on the CPU."""
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, device="cuda", requires_grad=True)
    layer.zero_grad()
    memory = [torch.randn(3, 5, 8, device="cuda")] * isinstance(
        layer, nn.TransformerDecoderLayer
    )
    y = layer(x, *memory)
    y.square().sum().backward()
    assert x.grad is not None
    found = [y, x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]
    return [t.detach().cpu() for t in found]


def held(layer: nn.Module, is_ours: bool = True) -> None:
    """It computes as stock, and by the block or not."""
    forward, backward = hits(FORWARD), hits(BACKWARD)
    found = gradients(layer)
    assert (forward.accelerated, backward.accelerated) == (is_ours, is_ours)
    with ptac.disabled():
        expected = gradients(layer)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


ACTIVATIONS = ["relu", "gelu", F.relu, nn.GELU(approximate="tanh"), nn.SiLU()]


@pytest.mark.parametrize("make", [encoder, decoder])
@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
def test_layers(on: Any, make: Any, activation: Any) -> None:
    held(make(activation=activation))


@pytest.mark.parametrize("make", [encoder, decoder])
def test_options(on: Any, make: Any) -> None:
    for options in ({"norm_first": True}, {"batch_first": False}, {"bias": False}):
        held(make(**options))


@pytest.mark.parametrize("make", [encoder, decoder])
def test_dropout(on: Any, make: Any) -> None:
    """That does something is stock's; in eval mode it does nothing."""
    layer = make(dropout=0.4)
    held(layer, is_ours=False)
    held(layer.eval())


def test_dropout_behind_the_block_stays(on: Any) -> None:
    layer = encoder()
    layer.dropout2.p = 0.5
    held(layer)


def _twice(x: Tensor) -> Tensor:
    return F.relu(x) * 2


class _Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x)


@pytest.mark.parametrize("activation", [_twice, _Unhashable(), torch.tanh])
def test_functions_that_are_not_known(on: Any, activation: Any) -> None:
    held(encoder(activation=activation), is_ours=False)


class _OfMine(nn.TransformerEncoderLayer):
    def _ff_block(self, x: Tensor) -> Tensor:
        return self.linear2(self.linear1(x))


def test_subclasses(on: Any) -> None:
    held(_OfMine(8, 2, 16, 0.0, batch_first=True).cuda(), is_ours=False)


def test_hooks(on: Any) -> None:
    layer = encoder()
    handle = layer.dropout.register_forward_hook(lambda *_: None)
    held(layer, is_ours=False)
    handle.remove()
    held(copy.deepcopy(layer))


def test_functions_that_are_patched(on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = encoder()
    monkeypatch.setattr(F, "relu", lambda x: x)
    held(layer, is_ours=False)


def test_on_the_cpu_nothing_is_looked_at(on: Any) -> None:
    layer, counted = encoder().cpu(), hits(FORWARD)
    layer(torch.randn(3, 5, 8)).sum().backward()
    assert (counted.accelerated, counted.forwarded) == (0, {})


def test_errors_are_stocks(on: Any) -> None:
    layer = encoder()

    def error() -> str:
        with pytest.raises(RuntimeError) as raised:
            layer._ff_block(torch.randn(3, 5, 7, device="cuda"))
        return str(raised.value)

    found = error()
    with ptac.disabled():
        assert error() == found


def test_it_is_put_back() -> None:
    layers = nn.TransformerEncoderLayer, nn.TransformerDecoderLayer
    before = [vars(layer)["_ff_block"] for layer in layers]
    with ptac.enable(FUSION):
        now = [vars(layer)["_ff_block"] for layer in layers]
        assert all(a is not b for a, b in zip(now, before, strict=True))
    assert [vars(layer)["_ff_block"] for layer in layers] == before


def test_it_can_be_scripted(on: Any) -> None:
    layer = encoder().cpu().eval()
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(torch.jit.script(layer)(x), layer(x))


def test_compiled_programs_trace_stocks(on: Any) -> None:
    layer, x = encoder(), torch.randn(3, 5, 8, device="cuda")
    compiled = torch.compile(layer, backend="eager", fullgraph=True)
    counted = hits(FORWARD)
    found = compiled(x)
    assert counted.accelerated == 0
    with ptac.disabled():
        torch.testing.assert_close(found.cpu(), layer(x).cpu())
