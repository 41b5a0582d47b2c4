"""Linear layers on CUDA where torch's cuBLASLt is not to be found."""

from __future__ import annotations

import _ctypes

import emulation
import pytest
import torch
from switching import hits
from torch import nn

import pai_torchacc as ptac


@pytest.fixture(scope="module", autouse=True)
def without_cublaslt() -> None:
    _ctypes.dlclose(emulation.cublaslt()._handle)


def test_stock_serves_and_the_report_says_why() -> None:
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU()).cuda().requires_grad_(False)
    x = torch.randn(4, 6, device="cuda")
    expected = net(x).cpu()
    with ptac.enable("operator_fusion"):
        counted = hits("linear_act")
        for _ in range(2):
            assert torch.equal(net(x).cpu(), expected)
            ptac.ops.linear_act(x, net[0].weight, net[0].bias, "relu")
        assert counted.accelerated == 0
        assert counted.forwarded["device"] == 2
        assert "linear layers on CUDA are stock's: no cuBLASLt" in ptac.report()


def test_int8_layers_run_dequantized() -> None:
    layer = ptac.quantize_model(nn.Linear(16, 8).cuda(), method="int8")
    x = torch.randn(40, 16, device="cuda")
    counted = hits("int8_linear")
    with torch.no_grad():
        expected = nn.functional.linear(x, layer.weight, layer.bias)
        assert torch.equal(layer(x).cpu(), expected.cpu())
    assert counted.forwarded == {"device": 1}
    assert "quantized layers on CUDA run dequantized: no cuBLASLt" in ptac.report()
    ptac.dequantize_model(layer)
    with pytest.warns(UserWarning, match="no cuBLASLt"):
        ptac.quantize_model(layer)
    ptac.disable()
