"""Which layers become fp8, and why others stay float or run dequantized."""

from __future__ import annotations

from typing import Any

import emulation
import fp8_layers
import pytest
import quantized_layers
import torch
import torch.nn.functional as F
from fp8_layers import FP8, X, net_of
from linear_layers import DTYPES
from quantized_layers import kernels, mlp, quantized
from switching import hits
from torch import nn

import pai_torchacc as ptac
from pai_torchacc.quantization import on_cuda, quantizer, timing
from pai_torchacc.quantization.layers import Fp8Linear

nothing_planned = quantized_layers.nothing_planned
switched_on_anywhere = fp8_layers.switched_on_anywhere
switched_on = fp8_layers.switched_on

SIZES = 48, 64, 32
OLD = "fp8 needs compute capability 9.0, and the device has 8.9"


@pytest.mark.parametrize(
    ("n", "k", "dtype", "faster"),
    [
        (11008, 4096, torch.bfloat16, {"cuda_m256", "cuda_m1024"}),
        (4096, 4096, torch.bfloat16, {"cuda_m256", "cuda_m1024"}),
        (4096, 2048, torch.bfloat16, {"cuda_m256", "cuda_m1024"}),
        (1024, 1024, torch.bfloat16, set()),
        (1024, 1024, torch.float32, {"cuda_m256", "cuda_m1024"}),
        (64, 64, torch.float32, set()),
    ],
)
def test_model_of_speed(n: int, k: int, dtype: torch.dtype, faster: set[str]) -> None:
    """The first three are what docs/quantization.md tells."""
    kinds = ("cuda_m256", "cuda_m1024")
    of = quantizer.FP8
    assert {x for x in kinds if on_cuda.is_faster(x, n, k, dtype, of)} == faster


@pytest.fixture
def faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 256 rows on, as though the layers of these tests were large."""
    monkeypatch.setattr(on_cuda, "is_faster", lambda *_: True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_rows_by_a_float_copy(
    switched_on: Any, faster: None, dtype: torch.dtype
) -> None:
    net = net_of(dtype, method="auto", dtype="fp8")
    assert type(net[0]) is Fp8Linear
    held = net[0]._buffers["weight_float"]
    assert held.dtype == dtype
    x = torch.randn(300, 48).cuda().to(dtype)
    counted, since = hits(FP8), len(emulation.launches())
    with torch.no_grad():
        many, few = net(x[:256]), net(x[:255])
        assert kernels(since)
        assert (counted.accelerated, counted.forwarded) == (2, {})
        plain = F.linear(x[:255], held, net[0].bias).relu()
        plain = F.linear(plain, net[2]._buffers["weight_float"], net[2].bias)
    assert torch.equal(few.cpu(), plain.cpu())
    torch.testing.assert_close(many[:255].cpu(), few.cpu(), rtol=0.2, atol=0.2)
    half = net.half()[0]._buffers["weight_float"]
    assert half.dtype == torch.float16


def test_small_layers_stay_float(switched_on: Any) -> None:
    with pytest.warns(UserWarning, match=r"become fp8 \(2 .*too small to be faster on"):
        net = net_of(method="auto", dtype="fp8")
    assert type(net[0]) is nn.Linear


def test_the_cpu_has_nothing_faster(switched_on: Any) -> None:
    with pytest.warns(UserWarning, match="fp8 is faster on CUDA only"):
        ptac.quantize_model(mlp(sizes=SIZES), dtype="fp8")


@pytest.mark.parametrize("method", ["fp8", "auto"])
def test_older_devices(
    switched_on: Any, faster: None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name layers are fp8 there too, for another device, and the report tells."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _=None: (8, 9))
    if method == "auto":
        with pytest.warns(UserWarning, match=OLD):
            net_of(method=method, dtype="fp8")
        return
    net = net_of(method=method)
    assert f"runs dequantized: {OLD}" in str(ptac.quantization_report(net))


def test_older_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    c = quantizer.extension()
    for version, said in (
        (120801, "fp8 needs cuBLASLt 12.9, and this is 12.8"),
        ("no cuBLASLt", "no cuBLASLt"),
    ):
        told = type("C", (), {"cublaslt_version": staticmethod(lambda v=version: v)})
        assert on_cuda._fp8_reason(told(), torch.device("cuda")) == said
    assert c.cublaslt_version() >= 120900
    assert on_cuda._fp8_reason(c, torch.device("cuda")) is None


def test_without_kernels_layers_stay_float(switched_on: Any, faster: None) -> None:
    with (
        emulation.without_machine_code(),
        pytest.warns(UserWarning, match="nobody provides their kernels"),
    ):
        net_of(method="auto", dtype="fp8")


class Mixed(nn.Module):
    """Layers of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.fits, self.wide = nn.Linear(32, 48), nn.Linear(32, 50)
        self.long, self.conv = nn.Linear(40, 48), nn.Conv2d(16, 16, 3)
        self.table, self.head = nn.Embedding(64, 32), nn.Linear(32, 64)
        self.head.weight = self.table.weight
        self.attention = nn.MultiheadAttention(32, 4)


def test_others_stay_float(switched_on: Any) -> None:
    net = quantized(Mixed().cuda(), method="fp8")
    layers = ptac.quantization_report(net).as_dict()["layers"]
    told = {layer["name"]: (layer["state"], layer["reason"]) for layer in layers}
    size = "fp8 has inputs and outputs in multiples of 16, not"
    unsupported = "Embedding is not supported in fp8"
    assert told == {
        "fits": ("fp8", None),
        "wide": ("float", f"{size} 32 and 50"),
        "long": ("float", f"{size} 40 and 48"),
        "conv": ("float", "Conv2d is not supported in fp8"),
        "table": ("float", unsupported),
        "head": ("float", f"shared with table, which stays float ({unsupported})"),
        "attention": ("float", "MultiheadAttention is not supported in fp8"),
        "attention.out_proj": (
            "float",
            "NonDynamicallyQuantizableLinear is not supported in fp8",
        ),
    }


def test_encoders_call_their_layers(switched_on: Any) -> None:
    """Torch's own fast path would read weights directly."""
    net = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    x = torch.randn(2, 7, 32)
    ours, counted = quantized(net.cuda(), method="fp8"), hits(FP8)
    with torch.no_grad():
        y, expected = ours(x.cuda()).cpu(), net.cpu()(x)
    assert counted.accelerated == 2
    assert [type(m) for m in (ours.linear1, ours.linear2)] == [Fp8Linear] * 2
    torch.testing.assert_close(y, expected, rtol=0.1, atol=0.1)


def test_nothing_that_could_be(switched_on: Any) -> None:
    with pytest.raises(ValueError, match=r"no layer that can be fp8 \(Linear, in"):
        ptac.quantize_model(nn.Conv2d(16, 16, 3), method="fp8")


def test_weight_only(switched_on: Any) -> None:
    net, counted = net_of(method="weight_only", dtype="fp8"), hits(FP8)
    with torch.no_grad():
        y = net(X.cuda()).cpu()
        assert counted.accelerated == 0
        assert type(net[0]) is Fp8Linear
        assert torch.equal(y, ptac.dequantize_model(net).cpu()(X))


def test_guard_and_report(switched_on: Any) -> None:
    """Two layers of 28.5 dB each have about 26 dB together."""
    net = mlp(sizes=SIZES).cuda()
    ptac.quantize_model(net, X.cuda(), method="fp8", guard=0.5)
    report = ptac.quantization_report(net).as_dict()
    assert report["sample"]["output_sqnr_db"] > 25
    for layer in report["layers"]:
        assert (layer["state"], layer["method"]) == ("fp8", "fp8")
        assert layer["output_sqnr_db"] > 27
        assert set(layer["buckets"].values()) == {"fp8"}
    assert report["bytes"]["float"] == 4 * (48 * 64 + 64 + 64 * 32 + 32)
    assert "2 of 2 layers are fp8" in ptac.report()
    strict = mlp(sizes=SIZES).cuda()
    ptac.quantize_model(strict, X.cuda(), method="fp8", guard=0.0)
    assert ptac.quantization_report(strict).as_dict()["sample"]["agreement"] == 1


def test_measured(switched_on: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {kind: rows._replace(typical=4) for kind, rows in timing.ROWS.items()}
    monkeypatch.setattr(timing, "ROWS", few)  # the emulation has a thread for each
    net = net_of(measure=True)
    timed = ptac.quantization_report(net).as_dict()["layers"][0]["measured"]
    assert set(timed) == {"cuda_few", "cuda_m256", "cuda_m1024"}
