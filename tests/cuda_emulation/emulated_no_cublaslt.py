"""Linear layers on CUDA where torch's cuBLASLt is not to be found."""

from __future__ import annotations

import _ctypes

import emulation
import torch
from switching import hits
from torch import nn

import pai_torchacc as ptac


def test_stock_serves_and_the_report_says_why() -> None:
    _ctypes.dlclose(emulation.cublaslt()._handle)
    emulation.give_machine_code()
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
