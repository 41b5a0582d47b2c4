"""int8 layers on CUDA as operators of torch's dispatcher: compiled, exported."""

from __future__ import annotations

from typing import Any

import pytest
import quantized_layers
import torch
from linear_layers import DTYPES
from quantized_layers import INT8, mlp, quantized
from switching import hits
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.quantization import quantizer

nothing_planned = quantized_layers.nothing_planned
switched_on = quantized_layers.switched_on


def operator(layer: nn.Module, x: torch.Tensor, *activation: int) -> torch.Tensor:
    n, k = layer.out_features, layer.in_features
    own = layer._buffers
    y: torch.Tensor = torch.ops.pai_torchacc.int8_linear(
        x, own["weight_packed"], own["weight_scale"], layer.bias, n, k, *activation
    )
    return y


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled(switched_on: Any, dtype: torch.dtype, autocast: bool) -> None:
    torch.compiler.reset()
    net, x = quantized(mlp(dtype).cuda()), torch.randn(20, 40).cuda().to(dtype)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.autocast("cuda", torch.float16, enabled=autocast), torch.no_grad():
        expected, counted = net(x), hits(INT8)
        y = compiled(x)
    assert counted.accelerated == 2
    assert y.dtype == expected.dtype == (torch.float16 if autocast else dtype)
    assert torch.equal(y.cpu(), expected.cpu())


def test_compiled_with_gradients(switched_on: Any) -> None:
    torch.compiler.reset()
    net, x = quantized(mlp().cuda()), torch.randn(20, 40)
    grads = []
    for f in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        leaf = x.cuda().requires_grad_()
        f(leaf).square().sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(*grads)


def test_exported(switched_on: Any) -> None:
    net, x = quantized(mlp().cuda()), torch.randn(20, 40).cuda()
    program = torch.export.export(net, (x,))
    assert "pai_torchacc.int8_linear" in str(program.graph)
    counted = hits(INT8)
    with torch.no_grad():
        y = program.module()(x)
        assert counted.accelerated == 2
        assert torch.equal(y.cpu(), net(x).cpu())
        ptac.disable()
        dequantized = program.module()(x).cpu()
    assert counted.accelerated == 4
    torch.testing.assert_close(dequantized, y.cpu(), rtol=0.1, atol=0.1)


def test_operator_and_its_fake_kernel_agree(switched_on: Any) -> None:
    layer = quantized(nn.Linear(40, 23).cuda())
    for dtype in DTYPES:
        for shape in ((40,), (5, 40), (2, 3, 40), (0, 40)):
            x = torch.randn(shape).cuda().to(dtype)
            own, bias = layer._buffers, layer.bias.detach().to(dtype)
            args = x, own["weight_packed"], own["weight_scale"], bias, 23, 40, 1
            torch.library.opcheck(
                torch.ops.pai_torchacc.int8_linear,
                args,
                test_utils=("test_schema", "test_faketensor"),
            )


def test_activation(switched_on: Any) -> None:
    layer, x = quantized(nn.Linear(40, 23).cuda()), torch.randn(5, 40).cuda()
    with torch.no_grad():
        plain, relu = operator(layer, x), operator(layer, x, 1)
    assert torch.equal(relu.cpu(), plain.relu().cpu())


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (23, 40), (5, 3), (64, 16)])
def test_layout(switched_on: Any, shape: tuple[int, int]) -> None:
    """Where the operators find the weight and its sums, on either device."""
    weight = torch.randint(-127, 128, shape, dtype=torch.int8)
    packed = quantizer.pack(weight.cuda())
    n, k = (-(-size // 16) * 16 for size in shape)
    assert packed.shape == (n + -(-4 * shape[0] // k), k)
    on_cpu = packed.cpu()
    sums = on_cpu[n:].reshape(-1)[: 4 * shape[0]].view(torch.int32)
    assert torch.equal(sums, weight.sum(1, dtype=torch.int32))
    assert int(on_cpu[:n].abs().sum()) == int(weight.long().abs().sum())
    unpack = torch.ops.pai_torchacc.int8_unpack
    for where in (packed, on_cpu):
        assert torch.equal(unpack(where, shape, 1).cpu(), weight)
    assert quantizer.is_packed_for_cuda(packed)
    assert not quantizer.is_packed_for_cuda(torch.zeros(8, dtype=torch.int8))
