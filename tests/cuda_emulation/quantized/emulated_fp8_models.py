"""fp8 models on CUDA: made there or moved there, saved, copied, compiled, undone."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import fp8_layers
import int8
import pytest
import quantized_layers
import torch
from fp8_layers import FP8, X, is_near, layer_of, net_of
from linear_layers import DTYPES
from quantized_layers import mlp, quantized
from switching import hits
from torch import Tensor, nn

import pai_torchacc as ptac
from pai_torchacc.quantization.layers import Fp8Linear

nothing_planned = quantized_layers.nothing_planned
switched_on_anywhere = fp8_layers.switched_on_anywhere
switched_on = fp8_layers.switched_on
by_way_of_the_cpu = quantized_layers.by_way_of_the_cpu

SIZES = 48, 64, 32
BUFFERS = {"weight_fp8", "weight_scale"}


def run(model: nn.Module, x: Tensor = X, device: str = "cuda") -> Tensor:
    """On the CPU, in inference."""
    with torch.no_grad():
        y: Tensor = model(x.to(device)).cpu()
    return y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_weights_are_the_nearest_numbers(switched_on: Any, dtype: torch.dtype) -> None:
    """With a scale by row that puts its largest magnitude at 448; on either device."""
    net = mlp(dtype, SIZES)
    with torch.no_grad():
        net[0].weight[3] = 0
        net[0].weight[4] *= 1e-30 if dtype == torch.float32 else 0.5
    on_cpu = quantized(net.float(), method="fp8")
    on_cuda = quantized(net.to(dtype).cuda(), method="fp8")
    for i in (0, 2):
        plain, scale = on_cuda[i].weight_fp8.cpu(), on_cuda[i].weight_scale.cpu()
        given = net[i].weight.detach().cpu().float()
        assert plain.dtype == torch.float8_e4m3fn
        torch.testing.assert_close(scale, given.abs().amax(1) / 448)
        near = plain.double() * scale.double()[:, None]
        # Half a step is 1/16 of a number, or of the least normal one, 2**-6.
        step = given.double().abs().clamp(min=0) / 16 + scale.double()[:, None] * 2**-10
        assert bool(((near - given.double()).abs() <= step * (1 + 1e-5)).all())
        assert torch.equal(on_cpu[i].weight_fp8, plain)
        assert torch.equal(on_cpu[i].weight_scale, scale)
        assert on_cuda[i].weight.dtype == dtype
        assert on_cuda[i]._int8.weight_sqnr() == pytest.approx(
            on_cpu[i]._int8.weight_sqnr()
        )


def test_not_finite_weights_stay_float(switched_on: Any) -> None:
    net = mlp(sizes=SIZES).cuda()
    with torch.no_grad():
        net[0].weight[3, 4] = float("inf")
    ptac.quantize_model(net, method="fp8")
    assert "NaN or Inf" in str(ptac.quantization_report(net))
    assert [type(m) for m in net] == [nn.Linear, nn.ReLU, Fp8Linear]


def test_there_and_back(switched_on: Any) -> None:
    """The CPU runs the dequantized numbers, and says so."""
    net = quantized(mlp(sizes=SIZES), method="fp8")
    on_cpu, counted = run(net, device="cpu"), hits(FP8)
    assert run(net, device="cpu").equal(on_cpu)
    assert (counted.accelerated, counted.forwarded) == (0, {"device": 2})
    plain = mlp(sizes=SIZES)
    plain.load_state_dict(ptac.dequantize_state_dict(net.state_dict()))
    assert torch.equal(run(plain, device="cpu"), on_cpu)
    assert reasons(net) == ["runs dequantized: fp8 has kernels on CUDA only"] * 2
    expected, counted = run(net.cuda()), hits(FP8)
    for device in ("cuda:1", "cuda", "cpu", "cuda"):
        assert net.to(device) is net
        assert {b.device.type for b in net.buffers()} == {torch.device(device).type}
        if device != "cpu":
            assert torch.equal(run(net, device=device), expected)
    assert counted.accelerated == 6
    assert set(dict(net[0].named_buffers())) == BUFFERS
    assert reasons(net) == [None] * 2


def reasons(net: nn.Module) -> list[str | None]:
    layers = ptac.quantization_report(net).as_dict()["layers"]
    return [layer["reason"] for layer in layers]


WAYS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "dtype and back": lambda m: m.half().float(),
}


@pytest.mark.parametrize("way", WAYS)
def test_copies(switched_on: Any, by_way_of_the_cpu: None, way: str) -> None:
    net = net_of()
    expected = run(net)
    other, counted = WAYS[way](net), hits(FP8)
    assert other[0]._buffers["weight_fp8"].dtype == torch.float8_e4m3fn
    assert other[0]._buffers["weight_scale"].dtype == torch.float32
    if way == "dtype and back":  # which rounds the biases
        torch.testing.assert_close(run(other), expected, rtol=1e-2, atol=1e-2)
    else:
        assert torch.equal(run(other), expected)
    assert counted.accelerated == 2


@pytest.mark.parametrize("from_device", ["cpu", "cuda"])
@pytest.mark.parametrize("to_device", ["cpu", "cuda"])
def test_checkpoints(switched_on: Any, from_device: str, to_device: str) -> None:
    net = quantized(mlp(sizes=SIZES), method="fp8").to(from_device)
    state = {k: v.clone() for k, v in net.state_dict().items()}
    names = {"weight_fp8", "weight_scale", "quantization", "bias"}
    assert set(state) == {f"{i}.{name}" for i in (0, 2) for name in names}
    expected = run(net.to(to_device), device=to_device)
    blank = nn.Sequential(nn.Linear(48, 64), nn.ReLU(), nn.Linear(64, 32))
    other = quantized(blank.to(to_device), method="fp8")
    place = other[0]._buffers["weight_fp8"]
    other.load_state_dict(state)
    assert torch.equal(run(other, device=to_device), expected)
    assert other[0]._buffers["weight_fp8"] is place  # written over: others may hold it
    floats = ptac.dequantize_state_dict(state)
    blank.load_state_dict(floats)
    assert torch.equal(blank[0].weight.cpu(), other[0].weight.cpu())
    other.load_state_dict(floats)
    assert torch.equal(run(other, device=to_device), expected)
    blank.load_state_dict(state)  # as the switch is on
    assert torch.equal(blank[0].weight.cpu(), other[0].weight.cpu())


def test_wrong_checkpoints_change_nothing(switched_on: Any) -> None:
    net = net_of()
    expected, state = run(net), net.state_dict()
    wrong = state["0.weight_fp8"].cpu().view(torch.uint8).clone()
    wrong[2, 3] = 0x7F
    for key, value, said in (
        ("0.weight_fp8", wrong.view(torch.float8_e4m3fn), "weight_fp8 has NaN"),
        ("0.weight_fp8", state["0.weight_fp8"].float(), "should be torch.float8"),
        ("0.weight_scale", -state["0.weight_scale"], "not finite and positive"),
        (
            "0.quantization",
            quantized(mlp(sizes=SIZES)).state_dict()["0.quantization"],
            "it is of 'int8', and the weight of fp8",
        ),
    ):
        with pytest.raises(RuntimeError, match=said):
            net.load_state_dict({**state, key: value})
        assert torch.equal(run(net), expected)
    with pytest.raises(RuntimeError, match="weight_int8"):
        net.load_state_dict(quantized(mlp(sizes=SIZES)).state_dict())
    with pytest.raises(AttributeError, match="weight_fp8 is quantized"):
        net[0].weight_fp8 = wrong


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_files(switched_on: Any, dtype: torch.dtype) -> None:
    net, x = net_of(dtype), X.to(dtype)
    content = int8.file_of(net)
    other = mlp(dtype, SIZES).cuda()
    ptac.load_quantized(other, io.BytesIO(content))
    assert type(other[0]) is Fp8Linear
    assert other[0].weight.dtype == dtype
    assert torch.equal(run(other, x), run(net, x))
    in_int8 = quantized(mlp(dtype, SIZES).cuda())
    with pytest.raises(ValueError, match="it is int8; dequantize_model"):
        ptac.load_quantized(in_int8, io.BytesIO(content))
    ptac.load_quantized(other, io.BytesIO(int8.file_of(mlp(dtype, SIZES))))
    assert type(other[0]) is nn.Linear
    assert other[0].weight.dtype == dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("keep_master", [True, False])
def test_undone(switched_on: Any, keep_master: bool, dtype: torch.dtype) -> None:
    net = mlp(dtype, SIZES).cuda()
    weight, before = net[0].weight, net[0].weight.detach().cpu()
    ptac.quantize_model(net, method="fp8", keep_master=keep_master)
    held = net[0].weight.cpu()
    ptac.dequantize_model(net)
    assert type(net[0]) is nn.Linear
    assert (net[0].weight is weight) == keep_master
    assert net[0].weight.dtype == dtype
    assert torch.equal(net[0].weight.detach().cpu(), before if keep_master else held)
    assert not [name for name, _ in net.named_buffers()]
    assert run(net, X.to(dtype)).dtype == dtype


def test_training_is_warned_of(switched_on: Any) -> None:
    net = net_of()
    with pytest.warns(UserWarning, match="quantized weights, which do not train"):
        net.train()


def test_tied_layers_stay_tied(switched_on: Any) -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)).cuda()
    net[2].weight = net[0].weight
    net, x = quantized(net, method="fp8"), torch.randn(20, 32)
    for device in ("cuda", "cuda:1"):
        first, last = (net.to(device)[i]._buffers["weight_fp8"] for i in (0, 2))
        assert first is last
    assert is_near(net[2](x.to("cuda:1")).detach(), net[2], x)
    ptac.dequantize_model(net)
    assert net[0].weight is net[2].weight


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_compiled(switched_on: Any, dtype: torch.dtype, autocast: bool) -> None:
    torch.compiler.reset()
    net, x = net_of(dtype), X.cuda().to(dtype)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    with torch.autocast("cuda", torch.float16, enabled=autocast), torch.no_grad():
        expected, counted = net(x), hits(FP8)
        y = compiled(x)
    assert counted.accelerated == 2
    assert y.dtype == expected.dtype == (torch.float16 if autocast else dtype)
    assert torch.equal(y.cpu(), expected.cpu())


def test_compiled_with_gradients(switched_on: Any) -> None:
    torch.compiler.reset()
    net, grads = net_of(), []
    for f in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        leaf = X.cuda().requires_grad_()
        f(leaf).square().sum().backward()
        grads.append(leaf.grad.cpu())
    torch.testing.assert_close(*grads)


def test_exported(switched_on: Any) -> None:
    net, x = net_of(), X.cuda()
    program = torch.export.export(net, (x,))
    assert "pai_torchacc.fp8_linear" in str(program.graph)
    counted = hits(FP8)
    with torch.no_grad():
        assert torch.equal(program.module()(x).cpu(), run(net))
    assert counted.accelerated == 4


def test_operator_and_its_fake_kernel_agree(switched_on: Any) -> None:
    layer = layer_of()
    for dtype in DTYPES:
        for shape in ((48,), (5, 48), (2, 3, 48), (0, 48)):
            own, bias = layer._buffers, layer.bias.detach().to(dtype)
            x = torch.randn(shape).cuda().to(dtype)
            args = x, own["weight_fp8"], own["weight_scale"], bias, 32, 48, 1
            torch.library.opcheck(
                torch.ops.pai_torchacc.fp8_linear, args, test_utils="test_faketensor"
            )
