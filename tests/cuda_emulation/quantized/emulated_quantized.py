"""int8 linear layers on CUDA: numbers, launches, streams, captures, refusals."""

from __future__ import annotations

import ctypes
from typing import Any

import emulation
import pytest
import quantized_layers
import torch
from linear_layers import ALLOWED, DTYPES, PLAIN, launched
from quantized_layers import INT8, VIEWS, kernels, lying_so, mlp, quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from benchmarks.extension import function

nothing_planned = quantized_layers.nothing_planned
switched_on = quantized_layers.switched_on


def on_cpu(model: nn.Module, x: Tensor, dtype: torch.dtype) -> Tensor:
    """The CPU's int8 numbers, in which all is float32 but what comes and goes."""
    reference = quantized(model.float().cpu())
    with torch.no_grad():
        return reference(x.to(dtype).float()).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("view", VIEWS)
def test_bits_are_those_of_the_cpu(
    switched_on: Any, view: str, dtype: torch.dtype, bias: bool
) -> None:
    layer, x = nn.Linear(40, 23, bias=bias).to(dtype), VIEWS[view](40)
    on_cuda = quantized(layer.cuda())
    expected = on_cpu(layer, x, dtype)
    counted = hits(INT8)
    with torch.no_grad():
        y = on_cuda(lying_so(x, dtype))
    assert counted.accelerated == 1
    assert not counted.forwarded
    assert y.dtype == dtype
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize("shape", [(40,), (1, 40)])
def test_a_single_row_has_eight_bits(switched_on: Any, shape: tuple[int, ...]) -> None:
    """Where the CPU takes 16: the row is what it is among others."""
    layer, x = quantized(nn.Linear(40, 23).cuda()), torch.randn(40)
    counted = hits(INT8)
    with torch.no_grad():
        among = layer(torch.stack([x, torch.randn(40)]).cuda())[0]
        y = layer(x.reshape(shape).cuda())
    assert y.shape == (*shape[:-1], 23)
    assert counted.accelerated == 2
    assert torch.equal(y.reshape(-1).cpu(), among.cpu())


def test_rows_of_large_calls_come_in_parts(switched_on: Any) -> None:
    """Their sums would take more memory than the result."""
    layer, x = nn.Linear(24, 16), torch.randn(2, 200, 24)
    on_cuda = quantized(layer.cuda())
    expected, since = on_cpu(layer, x, torch.float32), len(emulation.launches())
    counted = hits(INT8)
    set_most = function("ptac_int8_on_cuda_set_most", None, ctypes.c_int64)
    set_most(1)
    with torch.no_grad():
        y = on_cuda(x.cuda())
    set_most(1 << 28)
    assert (
        kernels(since) == ["quantize_int8_wide_f32", "dequantize_f32"] * 4
    )  # of 128 rows, the last of 16
    assert counted.accelerated == 1
    assert torch.equal(y.cpu(), expected)


def test_not_finite_rows_are_nan(switched_on: Any) -> None:
    layer, x = quantized(nn.Linear(40, 23).cuda()), torch.randn(4, 40)
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    with torch.no_grad():
        y = layer(x.cuda()).cpu()
    assert y.isnan().all(1).tolist() == [False, True, True, False]


def test_relu_behind_a_layer_is_in_its_kernel(switched_on: Any) -> None:
    net = quantized(mlp().cuda())
    x, since = torch.randn(20, 40), len(emulation.launches())
    counted = hits(INT8)
    with torch.inference_mode():
        y = net(x.cuda())
        assert kernels(since) == [
            *("quantize_int8_wide_f32", "dequantize_f32"),
            *("quantize_int8_f32", "dequantize_f32"),
        ]
        assert counted.accelerated == 2
        apart = net[2](net[1](net[0](x.cuda())))
        assert torch.equal(y.cpu(), apart.cpu())
    assert y.is_inference()


def test_launches_allocations_and_calls(switched_on: Any) -> None:
    """Nothing waits; what is allocated are the result and a workspace."""
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    driver = emulation.load()
    with torch.no_grad():
        layer(x)
        blocks = driver.emulated_blocks_ever()
        emulation.stock_calls(), emulation.calls()
        layer(x)
    assert driver.emulated_blocks_ever() == blocks + 2
    assert not emulation.stock_calls()
    assert set(emulation.calls()) <= {*ALLOWED, "cuLaunchKernel"}
    assert emulation.cublaslt().emulated_misuse() is None


def test_launches_follow_stream_and_device(switched_on: Any) -> None:
    layer = quantized(nn.Linear(48, 32)).to("cuda:1")
    x, stream = torch.randn(20, 48, device="cuda:1"), torch.Stream("cuda:1")
    since = len(emulation.launches())
    with stream, torch.no_grad():
        layer(x)
    places = {tuple(launch.split()[1:]) for launch in emulation.launches()[since:]}
    assert places == {("1", str(stream.stream_id))}


def test_capture(switched_on: Any) -> None:
    """Products that have not been planned run dequantized there."""
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    stream, counted = torch.Stream("cuda"), hits(INT8)

    def captured() -> list[str]:
        since = len(emulation.launches())
        with emulation.capturing(stream), torch.no_grad():
            layer(x)
        return launched(since)

    assert captured() == []
    assert counted.forwarded == {"kernel not compiled yet": 1}
    with torch.no_grad():
        layer(x)
    counted = hits(INT8)
    assert captured() == ["quantize_int8_wide_f32", PLAIN, "dequantize_f32"]
    assert (counted.accelerated, counted.forwarded) == (1, {})


def dequantized(layer: Any, x: Tensor) -> Tensor:
    """What is computed where no kernel takes a call."""
    y: Tensor = nn.functional.linear(x, layer.weight.to(x.dtype), layer.bias)
    return y


def test_without_machine_code(switched_on: Any) -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    counted = hits(INT8)
    with emulation.without_machine_code(), torch.no_grad():
        assert torch.equal(layer(x).cpu(), dequantized(layer, x).cpu())
    assert counted.forwarded == {"kernel not compiled yet": 1}
    assert counted.accelerated == 0


def test_what_the_library_refuses(switched_on: Any) -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    counted = hits(INT8)
    emulation.cublaslt().emulated_refuse(1)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(layer(x).cpu(), dequantized(layer, x).cpu())
    emulation.cublaslt().emulated_refuse(0)
    assert counted.forwarded == {"argument": 2}


def test_off_disabled_and_excluded() -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    with torch.no_grad():
        expected, counted = dequantized(layer, x).cpu(), hits(INT8)
        with ptac.disabled():
            assert torch.equal(layer(x).cpu(), expected)
        assert counted.forwarded == {"disabled in this thread": 1}
        ptac.disable()
        assert torch.equal(layer(x).cpu(), expected)
        assert counted.forwarded == {"disabled in this thread": 1}
        with ptac.enable("model_quantization", exclude=[INT8]):
            assert torch.equal(layer(x).cpu(), expected)
            assert counted.forwarded["excluded"] == 1
        assert counted.accelerated == 0


def test_fusion_does_not_open_the_gate() -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48, device="cuda")
    ptac.disable()
    counted = hits(INT8)
    with ptac.enable("operator_fusion"), torch.no_grad():
        layer(x)
    assert counted.accelerated == 0


def test_empty_rows_and_wrong_calls(switched_on: Any) -> None:
    layer = quantized(nn.Linear(48, 32).cuda())
    assert layer(torch.empty(0, 48, device="cuda")).shape == (0, 32)
    with pytest.raises(RuntimeError):
        layer(torch.randn(3, 47, device="cuda"))
    with pytest.raises(RuntimeError, match=r"dtype|same"):
        layer(torch.randn(3, 48, device="cuda", dtype=torch.float16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("given", DTYPES, ids=str)
def test_autocast(switched_on: Any, given: torch.dtype, dtype: torch.dtype) -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48).to(given)
    counted = hits(INT8)
    with torch.autocast("cuda", dtype), torch.no_grad():
        y = layer(x.cuda())
    assert (y.dtype, counted.accelerated) == (dtype, 1)
    reference = quantized(nn.Linear(48, 32))
    reference.load_state_dict(layer.state_dict())
    with torch.no_grad():
        reference.bias.copy_(reference.bias.to(dtype).float())
        expected = reference(x.to(dtype).float()).to(dtype)
    assert torch.equal(y.cpu(), expected)


@pytest.mark.parametrize("autocast", [False, True])
def test_gradients_of_inputs_and_biases(switched_on: Any, autocast: bool) -> None:
    layer, x = quantized(nn.Linear(48, 32).cuda()), torch.randn(20, 48)
    on_cuda = x.cuda().requires_grad_()
    counted = hits(INT8)
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        layer(on_cuda).sum().backward()
    assert counted.accelerated == 1
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        plain = nn.Linear(48, 32)
        plain.weight = nn.Parameter(layer.weight.cpu())
        given = x.clone().requires_grad_()
        plain(given).sum().backward()
    torch.testing.assert_close(on_cuda.grad.cpu(), given.grad, rtol=1e-2, atol=1e-2)
    assert layer.bias.grad.cpu().tolist() == [20.0] * 32
