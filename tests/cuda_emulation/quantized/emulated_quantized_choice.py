"""Which layers on CUDA become int8, and what the others are computed by."""

from __future__ import annotations

from typing import Any

import emulation
import pytest
import quantized_layers
import torch
import torch.nn.functional as F
from linear_layers import DTYPES
from quantized_layers import INT8, kernels, mlp, quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import on_cuda
from pai_torchacc.quantization.layers import Int8Conv2d, Int8Linear

nothing_planned = quantized_layers.nothing_planned
switched_on = quantized_layers.switched_on


@pytest.mark.parametrize(
    ("n", "k", "dtype", "faster"),
    [
        (11008, 4096, torch.bfloat16, {"cuda_m256", "cuda_m1024"}),
        (4096, 4096, torch.bfloat16, {"cuda_m1024"}),
        (11008, 2048, torch.bfloat16, {"cuda_m1024"}),
        (4096, 2048, torch.bfloat16, set()),
        (16384, 16384, torch.float16, {"cuda_m256", "cuda_m1024"}),
        (4096, 512, torch.bfloat16, set()),  # what is around the product takes longer
        (1024, 1024, torch.float32, {"cuda_m256", "cuda_m1024"}),
        (64, 64, torch.float32, set()),
    ],
)
def test_model_of_speed(n: int, k: int, dtype: torch.dtype, faster: set[str]) -> None:
    """The first four are what docs/quantization.md tells."""
    kinds = ("cuda_m256", "cuda_m1024")
    assert {x for x in kinds if on_cuda.is_faster(x, n, k, dtype)} == faster


def test_model_asks_settings() -> None:
    """TF32 makes float32 faster, autocast makes it 16 bits."""
    kind, n, k = "cuda_m1024", 1024, 1024
    assert on_cuda.is_faster(kind, n, k, torch.float32)
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    assert not on_cuda.is_faster(kind, n, k, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = before
    with torch.autocast("cuda", torch.bfloat16):
        assert not on_cuda.is_faster(kind, n, k, torch.float32)


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 256 rows on, as though the layers of these tests were large."""
    monkeypatch.setattr(on_cuda, "is_faster", lambda *_: True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_rows_by_a_float_copy(
    switched_on: Any, faster: None, dtype: torch.dtype
) -> None:
    net = quantized(mlp(dtype).cuda(), method="auto")
    assert type(net[0]) is Int8Linear
    held = net[0]._buffers["weight_float"]
    assert held.dtype == dtype
    assert torch.equal(held.cpu(), net[0].weight.cpu())
    x = torch.randn(300, 40).cuda().to(dtype)
    counted, since = hits(INT8), len(emulation.launches())
    with torch.no_grad():
        emulation.stock_calls()
        many = net(x[:256])
        assert not emulation.stock_calls()  # ReLU is in the layer's kernel
        few = net(x[:255])
        assert [name.split("_")[0] for name in kernels(since)] == [
            *("quantize", "dequantize") * 2
        ]
        assert (counted.accelerated, counted.forwarded) == (2, {})
        plain = F.linear(x[:255], held, net[0].bias).relu()
        plain = F.linear(plain, net[2]._buffers["weight_float"], net[2].bias)
    assert torch.equal(few.cpu(), plain.cpu())
    torch.testing.assert_close(many[:255].cpu(), few.cpu(), rtol=0.1, atol=0.1)


def test_decisions_of_one_device_leave_the_other_alone(
    switched_on: Any, faster: None
) -> None:
    net = quantized(mlp().cuda(), method="auto")
    packed_and_copy = {"weight_packed", "weight_scale", "weight_float"}
    assert set(dict(net[0].named_buffers())) == packed_and_copy
    net.cpu()
    assert set(dict(net[0].named_buffers())) == {"weight_packed", "weight_scale"}
    counted = hits(INT8)
    with torch.no_grad():
        net(torch.randn(20, 40))
    assert counted.accelerated == 2
    net.cuda()
    assert set(dict(net[0].named_buffers())) == packed_and_copy
    copy_before = net[0]._buffers["weight_float"]
    net.to("cuda:1")
    assert net[0]._buffers["weight_float"].device.index == 1
    net.cuda().half()
    assert net[0]._buffers["weight_float"].dtype == torch.float16
    assert copy_before.dtype == torch.float32


def test_small_layers_stay_float(switched_on: Any) -> None:
    net = mlp().cuda()
    with pytest.warns(UserWarning, match="too small to be faster on CUDA"):
        ptac.quantize_model(net)
    assert type(net[0]) is nn.Linear


def test_without_kernels_layers_stay_float(switched_on: Any, faster: None) -> None:
    net = mlp().cuda()
    with (
        emulation.without_machine_code(),
        pytest.warns(UserWarning, match="nobody provides their kernels"),
    ):
        ptac.quantize_model(net)
    assert type(net[0]) is nn.Linear


def images() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 36, 10)
    ).eval()


def test_convolutions_stay_float(switched_on: Any) -> None:
    net, x = images().cuda(), torch.randn(4, 3, 8, 8, device="cuda")
    ptac.quantize_model(net, method="int8")
    assert [type(m) for m in net][::3] == [nn.Conv2d, Int8Linear]
    layer = ptac.quantization_report(net).as_dict()["layers"][0]
    assert (layer["state"], layer["reason"]) == ("float", "no int8 convolution on CUDA")
    counted = hits(INT8)
    with torch.no_grad():
        net(x)
    assert counted.accelerated == 1


def test_convolutions_that_came_from_the_cpu(switched_on: Any) -> None:
    net, x = quantized(images()), torch.randn(4, 3, 8, 8)
    expected = net(x).detach()
    counted = hits(INT8)
    with torch.no_grad():
        y = net.cuda()(x.cuda()).cpu()
    assert type(net[0]) is Int8Conv2d
    assert counted.accelerated == 1
    torch.testing.assert_close(y, expected, rtol=0.05, atol=0.05)


def test_weight_only(switched_on: Any) -> None:
    net, x = quantized(images().cuda(), method="weight_only"), torch.randn(4, 3, 8, 8)
    counted = hits(INT8)
    with torch.no_grad():
        y = net(x.cuda()).cpu()
    assert counted.accelerated == 0
    reference = ptac.dequantize_model(net).cpu()
    torch.testing.assert_close(y, reference(x).detach())


class Cross(nn.Module):
    """Attention within a sequence, and between two."""

    def __init__(self) -> None:
        super().__init__()
        self.within = nn.MultiheadAttention(32, 4, batch_first=True)
        self.between = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: Tensor, other: Tensor) -> Tensor:
        x = self.within(x, x, x, need_weights=False)[0]
        y: Tensor = self.between(x, other, other)[0]
        return y


def test_attention(switched_on: Any) -> None:
    """Its projections are int8, with the numbers of the CPU."""
    net = Cross().eval()
    x, other = torch.randn(2, 7, 32), torch.randn(2, 9, 32)
    on_cpu = quantized(net)
    made, moved = quantized(net.cuda()), quantized(net.cpu()).cuda()
    with torch.no_grad():
        expected = on_cpu(x, other)
        for cuda in (made, moved):
            counted = hits(INT8)
            y = cuda(x.cuda(), other.cuda()).cpu()
            assert counted.accelerated == 5  # the last takes queries and the others
            torch.testing.assert_close(y, expected)
            assert torch.equal(moved.cuda()(x.cuda(), other.cuda()).cpu(), y)


def test_attention_is_not_packed_anew_in_a_capture(switched_on: Any) -> None:
    """What was packed there would be there at the graph's replay only."""
    net = quantized(Cross().cuda())
    x, other = torch.randn(2, 7, 32).cuda(), torch.randn(2, 9, 32).cuda()
    with torch.no_grad():
        with emulation.capturing(torch.Stream("cuda")):
            captured = net(x, other).cpu
        assert len(net.between._packed()) == 1
        y = net(x, other)
        assert len(net.between._packed()) == 2
    torch.testing.assert_close(captured(), y.cpu(), rtol=0.05, atol=0.05)


def test_attention_and_embeddings_stay_float_by_the_model(
    switched_on: Any, faster: None
) -> None:
    net = nn.ModuleList([Cross(), nn.Embedding(50, 32), nn.Linear(32, 8)]).cuda()
    ptac.quantize_model(net)
    reasons = {
        layer["name"]: layer["reason"]
        for layer in ptac.quantization_report(net).as_dict()["layers"]
    }
    assert reasons["0.within"] == "MultiheadAttention on CUDA is not faster in int8"
    assert reasons["0.within.out_proj"] == "its attention stays float"
    assert reasons["1"] == "Embedding on CUDA is not faster in int8"
    assert reasons["2"] is None
