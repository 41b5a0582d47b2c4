"""fp8 linear layers on CUDA: numbers, launches, captures, refusals."""

from __future__ import annotations

from typing import Any

import emulation
import fp8_layers
import pytest
import quantized_layers
import torch
from fp8_layers import FP8, X, capability, is_near, layer_of, net_of
from linear_layers import ALLOWED, DTYPES
from quantized_layers import VIEWS, kernels, lying_so, quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import operators

nothing_planned = quantized_layers.nothing_planned
switched_on_anywhere = fp8_layers.switched_on_anywhere
switched_on = fp8_layers.switched_on

ANY = {"one row": torch.randn, **VIEWS}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", ANY)
def test_numbers(switched_on: Any, view: str, dtype: torch.dtype, bias: bool) -> None:
    layer, x = layer_of(dtype=dtype, bias=bias), ANY[view](48)
    counted = hits(FP8)
    with torch.no_grad():
        y = layer(lying_so(x, dtype))
    assert (counted.accelerated, counted.forwarded) == (1, {})
    assert (y.dtype, y.shape) == (dtype, (*x.shape[:-1], 32))
    assert is_near(y, layer, x.to(dtype))


def test_rows_of_any_size(switched_on: Any) -> None:
    """Zeros give the bias, what is not finite NaN in its own row only."""
    layer, x = layer_of(), torch.randn(6, 48) * torch.logspace(-30, 30, 6)[:, None]
    x[1] = 0
    with torch.no_grad():
        y = layer(x.cuda())
        assert is_near(y, layer, x)
        assert torch.equal(y[1].cpu(), layer.bias.cpu())
        x[2, 3], x[4, 5] = float("nan"), float("inf")
        of_rows = layer(x.cuda()).cpu().isnan()
    assert of_rows.all(1).tolist() == [False, False, True, False, True, False]
    assert of_rows.any(1).tolist() == of_rows.all(1).tolist()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_relu_behind_a_layer_is_in_its_product(
    switched_on: Any, dtype: torch.dtype
) -> None:
    """But for float32, of which the library has no bias: there it is in its kernel."""
    net, x = net_of(dtype), X.to(dtype).cuda()
    since, counted = len(emulation.launches()), hits(FP8)
    with torch.inference_mode():
        emulation.stock_calls()
        y = net(x)
        assert not emulation.stock_calls()
        assert counted.accelerated == 2
        assert [name.split("_")[0] for name in kernels(since)] == (
            ["quantize", "bias"] * 2 if dtype == torch.float32 else ["quantize"] * 2
        )
        apart = net[2](net[1](net[0](x)))
    # Another epilogue may be another algorithm, whose sums then round otherwise.
    torch.testing.assert_close(y.cpu(), apart.cpu(), rtol=0.02, atol=0.02)


def test_launches_allocations_and_calls(switched_on: Any) -> None:
    """Nothing waits; what is allocated are the result and a workspace."""
    layer, x = layer_of(dtype=torch.bfloat16), X.to("cuda", torch.bfloat16)
    driver = emulation.load()
    with torch.no_grad():
        layer(x)
        blocks = driver.emulated_blocks_ever()
        emulation.stock_calls(), emulation.calls()
        since = len(emulation.launches())
        layer(x)
    assert kernels(since) == ["quantize_fp8_wide_bf16"]
    assert driver.emulated_blocks_ever() == blocks + 2
    assert not emulation.stock_calls()
    assert set(emulation.calls()) <= {*ALLOWED, "cuLaunchKernel"}
    assert emulation.cublaslt().emulated_misuse() is None


def test_launches_follow_stream_and_device(switched_on: Any) -> None:
    layer = layer_of().to("cuda:1")
    x, stream = torch.randn(20, 48, device="cuda:1"), torch.Stream("cuda:1")
    since = len(emulation.launches())
    with stream, torch.no_grad():
        layer(x)
    places = {tuple(launch.split()[1:]) for launch in emulation.launches()[since:]}
    assert places == {("1", str(stream.stream_id))}


def test_capture(switched_on: Any) -> None:
    """Products that have not been planned run dequantized there."""
    layer, x = layer_of(), X.cuda()
    stream, counted = torch.Stream("cuda"), hits(FP8)

    def captured() -> int:
        since = len(emulation.launches())
        with emulation.capturing(stream), torch.no_grad():
            layer(x)
        return len(emulation.launches()) - since

    assert captured() == 0
    assert counted.forwarded == {"kernel not compiled yet": 1}
    with torch.no_grad():
        layer(x)
    counted = hits(FP8)
    assert captured() == 3
    assert (counted.accelerated, counted.forwarded) == (1, {})


def dequantized(layer: Any, x: Tensor) -> Tensor:
    """What is computed where no kernel takes a call."""
    y: Tensor = nn.functional.linear(x, layer.weight.to(x.dtype), layer.bias)
    return y.cpu()


def test_without_machine_code(switched_on: Any) -> None:
    layer, x, counted = layer_of(), X.cuda(), hits(FP8)
    with emulation.without_machine_code(), torch.no_grad():
        assert torch.equal(layer(x).cpu(), dequantized(layer, x))
    assert counted.forwarded == {"kernel not compiled yet": 1}
    assert counted.accelerated == 0


def test_what_the_library_refuses(switched_on: Any) -> None:
    layer, x, counted = layer_of(), X.cuda(), hits(FP8)
    emulation.cublaslt().emulated_refuse(1)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(layer(x).cpu(), dequantized(layer, x))
    emulation.cublaslt().emulated_refuse(0)
    assert counted.forwarded == {"argument": 2}


@pytest.mark.parametrize("number", [80, 89, 100, 120])
def test_other_devices_run_dequantized(switched_on: Any, number: int) -> None:
    layer, x = layer_of(), X.cuda()
    with torch.no_grad():
        layer(x)
        counted = hits(FP8)
        with capability(number):
            y = layer(x)
    assert counted.forwarded == {"device": 1}
    assert torch.equal(y.cpu(), dequantized(layer, x))


def test_off_disabled_and_excluded() -> None:
    layer, x = layer_of(), X.cuda()
    with torch.no_grad():
        expected, counted = dequantized(layer, x), hits(FP8)
        with ptac.disabled():
            assert torch.equal(layer(x).cpu(), expected)
        assert counted.forwarded == {"disabled in this thread": 1}
        ptac.disable()
        assert torch.equal(layer(x).cpu(), expected)
        with ptac.enable("model_quantization", exclude=[FP8]):
            assert torch.equal(layer(x).cpu(), expected)
            assert counted.forwarded["excluded"] == 1
        assert counted.accelerated == 0


@pytest.mark.parametrize("numerics", ["exact", "close", "fast"])
def test_levels_are_not_of_what_is_asked_for_by_name(
    switched_on: Any, numerics: str
) -> None:
    layer, counted = layer_of(), hits(FP8)
    switches = "model_quantization", "operator_fusion"
    with ptac.enable(*switches, numerics=numerics), torch.no_grad():
        layer(X.cuda())
    assert counted.accelerated == 1


def test_empty_rows_and_wrong_calls(switched_on: Any) -> None:
    layer = layer_of()
    assert layer(torch.empty(0, 48, device="cuda")).shape == (0, 32)
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 47, device="cuda"))
    with pytest.raises(RuntimeError, match=r"dtype|same"):
        layer(torch.randn(3, 48, device="cuda", dtype=torch.float16))


@pytest.mark.parametrize("method", ["fp8", "int8"])
def test_a_weight_whose_memory_was_given_away(switched_on: Any, method: str) -> None:
    """No kernel reads it; torch's operators say what is wrong."""
    layer = quantized(nn.Linear(48, 32).cuda(), method=method)
    held, scale = layer._buffers[layer.held_as], layer._buffers["weight_scale"]
    gone = torch._C._dynamo.guards._reinterpret_tensor(
        held.new_empty(0), held.shape, held.stride()
    )
    kernel, counted = (
        operators.kernels[f"{layer.operator}_kernel"],
        hits(layer.operator),
    )
    assert kernel(X.cuda(), held, scale, None, 32, 48) is not None
    assert kernel(X.cuda(), gone, scale, None, 32, 48) is None
    assert (counted.accelerated, counted.forwarded) == (1, {"argument": 1})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_autocast(switched_on: Any, given: torch.dtype, dtype: torch.dtype) -> None:
    layer, x, counted = layer_of(), X.to(given), hits(FP8)
    with torch.autocast("cuda", dtype), torch.no_grad():
        y = layer(x.cuda())
    assert (y.dtype, counted.accelerated) == (dtype, 1)
    with torch.no_grad():
        layer.bias.copy_(layer.bias.to(dtype).float())
    assert is_near(y, layer, x.to(dtype))


@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_of_inputs_and_biases(switched_on: Any, autocast: bool) -> None:
    """As of a float layer with the dequantized weight."""
    layer, leaf, counted = layer_of(), X.cuda().requires_grad_(), hits(FP8)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        layer(leaf).sum().backward()
    assert counted.accelerated == 1
    expected = layer.weight.cpu().sum(0).expand(20, 48)
    torch.testing.assert_close(leaf.grad.cpu(), expected, rtol=1e-2, atol=1e-2)
    assert layer.bias.grad.cpu().tolist() == [20.0] * 32
