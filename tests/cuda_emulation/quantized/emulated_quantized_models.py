"""Quantized models on CUDA: made there or moved there, saved, copied, undone."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import int8
import pytest
import quantized_layers
import torch
from linear_layers import DTYPES
from quantized_layers import INT8, mlp, quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization import timing
from pai_torchacc.quantization.layers import Int8Linear

nothing_planned = quantized_layers.nothing_planned
switched_on = quantized_layers.switched_on
by_way_of_the_cpu = quantized_layers.by_way_of_the_cpu

X = torch.randn(20, 40)


def run(model: nn.Module, x: Tensor = X, device: str = "cuda") -> Tensor:
    """On the CPU, in inference."""
    with torch.no_grad():
        y: Tensor = model(x.to(device)).cpu()
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_are_quantized_as_on_the_cpu(
    switched_on: Any, dtype: torch.dtype
) -> None:
    net = mlp(dtype)
    with torch.no_grad():
        net[0].weight[3] = 0
        net[0].weight[4] *= 1e-30 if dtype == torch.float32 else 0.5
    on_cpu, on_cuda = quantized(net.float()), quantized(net.cuda().to(dtype))
    for i in (0, 2):
        assert torch.equal(on_cpu[i].weight_int8, on_cuda[i].weight_int8.cpu())
        assert torch.equal(on_cpu[i].weight_scale, on_cuda[i].weight_scale.cpu())
        assert on_cuda[i].weight.dtype == dtype
        assert on_cuda[i].weight.is_cuda
        a, b = (m[i]._int8.weight_sqnr() for m in (on_cpu, on_cuda))
        assert a == pytest.approx(b)


def test_not_finite_weights_stay_float(switched_on: Any) -> None:
    net = mlp().cuda()
    with torch.no_grad():
        net[0].weight[3, 4] = float("inf")
    ptac.quantize_model(net, method="int8")
    assert "NaN or Inf" in str(ptac.quantization_report(net))
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, Int8Linear]


def test_there_and_back(switched_on: Any) -> None:
    """In any order, with the CPU's bits wherever it is."""
    net = quantized(mlp())
    expected, packed = run(net, device="cpu"), net[0].weight_packed.clone()
    counted = hits(INT8)
    for device in ("cuda", "cuda:1", "cuda", "cpu", "cuda:1", "cpu"):
        assert net.to(device) is net
        assert {b.device for b in net.buffers()} == {
            torch.empty(0, device=device).device
        }
        assert torch.equal(run(net, device=device), expected)
    assert counted.accelerated == 12
    assert torch.equal(net[0].weight_packed, packed)
    assert set(dict(net[0].named_buffers())) == {"weight_packed", "weight_scale"}


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "dtype and back": lambda m: m.half().float(),
}


@pytest.mark.parametrize("way", WAYS)
def test_copies(switched_on: Any, by_way_of_the_cpu: None, way: str) -> None:
    net = quantized(mlp().cuda())
    expected = run(net)
    other, counted = WAYS[way](net), hits(INT8)
    bias = other[0].bias
    assert bias.is_cuda
    if way == "dtype and back":
        expected = expected.half().float()
        torch.testing.assert_close(run(other), expected, rtol=1e-2, atol=1e-2)
    else:
        assert torch.equal(run(other), expected)
    assert counted.accelerated == 2


@pytest.mark.parametrize("from_device", ["cpu", "cuda"])
@pytest.mark.parametrize("to_device", ["cpu", "cuda"])
def test_checkpoints(switched_on: Any, from_device: str, to_device: str) -> None:
    net = quantized(mlp()).to(from_device)
    expected = run(net, device=from_device)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    assert all(v.device.type == from_device for k, v in state.items() if "weight" in k)
    torch.default_generator.manual_seed(1)
    blank = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 30))
    other = quantized(blank.to(to_device))
    place = other[0].weight_packed
    other.load_state_dict(state)
    assert torch.equal(run(other, device=to_device), expected)
    assert other[0].weight_packed is place  # written over: others may hold it
    floats = ptac.dequantize_state_dict(state)
    blank.load_state_dict(floats)
    assert torch.equal(blank[0].weight.cpu(), other[0].weight.cpu())
    other.load_state_dict(floats)
    assert torch.equal(run(other, device=to_device), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_files(switched_on: Any, dtype: torch.dtype) -> None:
    net = quantized(mlp(dtype).cuda())
    content = int8.file_of(net)
    other = mlp(dtype).cuda()
    ptac.load_quantized(other, io.BytesIO(content))
    assert other[0].weight_packed.is_cuda
    assert other[0].weight.dtype == dtype
    assert torch.equal(run(other, X.to(dtype)), run(net, X.to(dtype)))
    # And one of a float model, which makes its layers float.
    ptac.load_quantized(other, io.BytesIO(int8.file_of(mlp(dtype))))
    assert type(other[0]) is nn.Linear
    assert other[0].weight.is_cuda
    assert other[0].weight.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep_master", [True, False])
def test_undone(switched_on: Any, keep_master: bool, dtype: torch.dtype) -> None:
    net = mlp(dtype).cuda()
    weight, before = net[0].weight, net[0].weight.detach().cpu()
    ptac.quantize_model(net, method="int8", keep_master=keep_master)
    held = net[0].weight.cpu()
    ptac.dequantize_model(net)
    assert type(net[0]) is nn.Linear
    assert (net[0].weight is weight) == keep_master
    assert net[0].weight.is_cuda
    assert net[0].weight.dtype == dtype
    assert torch.equal(net[0].weight.detach().cpu(), before if keep_master else held)
    assert run(net, X.to(dtype)).dtype == dtype


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 32), nn.Linear(32, 50)
        self.head.weight = self.embedding.weight

    def forward(self, indices: Tensor) -> Tensor:
        y: Tensor = self.head(self.embedding(indices))
        return y


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_tied_weights_stay_tied(switched_on: Any, where: str) -> None:
    net, indices = Tied().eval(), torch.arange(12).reshape(2, 6)
    expected = run(quantized(net), indices, "cpu")
    net = quantized(net.to(where)).cuda()
    assert net.embedding.weight_int8 is not None
    counted = hits(INT8)
    assert torch.equal(run(net, indices), expected)
    assert counted.accelerated == 1
    assert net.embedding._buffers["weight_scale"] is net.head._buffers["weight_scale"]
    again = net.to("cuda:1")
    assert net.embedding._buffers["weight_scale"] is net.head._buffers["weight_scale"]
    assert torch.equal(run(again, indices, "cuda:1"), expected)
    ptac.dequantize_model(net)
    assert net.embedding.weight is net.head.weight


def test_replicas(switched_on: Any) -> None:
    """As DataParallel makes them."""
    net = quantized(mlp().cuda())
    expected = run(net)
    replica = net._replicate_for_data_parallel()
    for name, child in net._modules.items():
        copied = child._replicate_for_data_parallel()
        for kind in ("_parameters", "_buffers"):
            for key, tensor in getattr(child, kind).items():
                getattr(copied, kind)[key] = tensor.detach().to("cuda:1")
        replica._modules[name] = copied
    counted = hits(INT8)
    assert torch.equal(run(replica, device="cuda:1"), expected)
    assert torch.equal(run(net), expected)
    assert counted.accelerated == 4


def test_guard_and_report(switched_on: Any) -> None:
    net, x = mlp().cuda(), X.cuda()
    ptac.quantize_model(net, x, method="int8", guard=0.5)
    report = ptac.quantization_report(net).as_dict()
    assert report["sample"]["output_sqnr_db"] > 30
    first, last = report["layers"]
    assert first["state"] == last["state"] == "int8"
    assert first["output_sqnr_db"] > 30
    assert report["bytes"]["float"] == 4 * (40 * 50 + 50 + 50 * 30 + 30)
    strict = mlp().cuda()
    ptac.quantize_model(strict, x, method="int8", guard=0.0)
    assert ptac.quantization_report(strict).as_dict()["sample"]["output_sqnr_db"] > 30


def test_measured(switched_on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {kind: rows._replace(typical=4) for kind, rows in timing.ROWS.items()}
    monkeypatch.setattr(timing, "ROWS", few)  # the emulation has a thread for each
    net = mlp().cuda()
    ptac.quantize_model(net, method="int8", measure=True)
    timed = ptac.quantization_report(net).as_dict()["layers"][0]["measured"]
    assert set(timed) == {"cuda_few", "cuda_m256", "cuda_m1024"}


def test_half_models_report_their_bytes(switched_on: Any) -> None:
    net = quantized(mlp(torch.bfloat16).cuda())
    found = ptac.quantization_report(net).as_dict()["bytes"]
    assert found["float"] == 2 * (40 * 50 + 50 + 50 * 30 + 30)
